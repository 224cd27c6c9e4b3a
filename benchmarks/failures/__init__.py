"""What each failure costs, measured with real processes: `python -m benchmarks.failures`."""
