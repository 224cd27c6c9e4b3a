"""What the environment says to processes that others of holdfast's have started."""

PARENT_VARIABLE = "HOLDFAST_SUPERVISOR"  # set for children: their stdin ends with the parent
