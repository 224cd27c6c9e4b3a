"""Values and their texts: pure, and known to every layer above."""
