"""What a worker does in the background, each duty in a service of its own."""
