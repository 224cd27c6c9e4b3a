"""A run's code in execution, and everything that it can call."""
