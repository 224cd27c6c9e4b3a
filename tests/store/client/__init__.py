"""The client against real stores."""
