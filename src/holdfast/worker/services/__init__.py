"""The duties of a worker in the background: each is a service."""
