"""One stretch of a run: events in, effects and commits out, no I/O."""
