"""What goes back to the store, gathered into few calls."""
