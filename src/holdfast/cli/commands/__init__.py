"""The commands: a module for each group, with what it writes."""
