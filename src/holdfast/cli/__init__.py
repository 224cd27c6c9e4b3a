"""The command line. What a command needs is imported when it runs, so that none waits for all."""

from __future__ import annotations

import sys


def main() -> None:
    """Run `holdfast` with the process's arguments, and exit."""
    if sys.argv[1:] == ["--version"]:  # answered without the rest: scripts ask it often
        from holdfast._version import __version__

        print(f"holdfast {__version__}")
        return
    from holdfast.cli.root import holdfast

    holdfast(prog_name="holdfast")
