"""How several commands write the same things, for people and for scripts."""
