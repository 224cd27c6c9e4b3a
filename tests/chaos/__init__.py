"""Kill all that can be killed while everything runs: `python -m tests.chaos --help`."""
