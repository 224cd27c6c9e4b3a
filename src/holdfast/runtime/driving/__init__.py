"""The runs that a worker holds, driven by what happens."""
