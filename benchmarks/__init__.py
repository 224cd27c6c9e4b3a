"""Benchmarks of holdfast beside its peers, on one server: `python -m benchmarks`."""
