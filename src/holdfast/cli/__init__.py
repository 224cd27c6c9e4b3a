"""The command line. A command imports what it needs when it runs, so that every command is fast."""

from __future__ import annotations

import sys


def main() -> None:
    """Run `holdfast` with the process's arguments, and exit."""
    if sys.argv[1:] == ["--version"]:  # without importing the rest: scripts ask often
        from holdfast._version import __version__

        print(f"holdfast {__version__}")
        return
    from holdfast.cli.root import holdfast

    holdfast(prog_name="holdfast")
