"""A turn: a run on one worker, from a claim to a suspension or the end. It does no I/O."""
