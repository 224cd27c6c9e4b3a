"""The REST API: a table of operations, what carries them out, and their description."""
