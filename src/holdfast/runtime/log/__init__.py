"""A run's log as the runtime reads and writes it."""
