"""The store contract, as facts that every store must show."""
