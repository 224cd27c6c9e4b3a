"""`python -m holdfast`: also how one command starts another with the same interpreter."""

from holdfast.cli import main

main()
