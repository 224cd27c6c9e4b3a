"""What the environment says to processes that others of holdfast's have started."""

# Set for children, to the number of the process that started them: their stdin ends with it.
PARENT_VARIABLE = "HOLDFAST_SUPERVISOR"
