"""The order workflow that `holdfast demo` runs, and the outside world that it acts on."""
