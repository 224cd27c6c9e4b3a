"""`python -m holdfast.cli`: how one command starts another with the same interpreter."""

from holdfast.cli import main

main()
