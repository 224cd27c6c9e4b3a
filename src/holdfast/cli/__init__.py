"""The command line. A command imports what it needs when it runs, so that every command is fast."""

from __future__ import annotations

import atexit
import gc
import sys
from typing import Final

_COLLECTOR: Final = (100_000, 10, 100)
"""When the garbage collector runs: not while the 80 000 objects of a worker's modules are loaded.
With the defaults it visits them again and again, a seventh of the time, and the suspended runs of a
worker: another seventh."""

_INTERRUPTED: Final = 130  # as holdfast.cli.exits has it, which is not loaded yet


def main() -> None:
    """Run `holdfast` with the process's arguments, and exit."""
    if sys.argv[1:] == ["--version"]:  # without importing the rest: scripts ask often
        from holdfast._version import __version__

        print(f"holdfast {__version__}")
        return
    gc.set_threshold(*_COLLECTOR)
    atexit.register(gc.freeze)  # or the interpreter visits all that is left, more than once
    try:
        if "worker" in sys.argv[1:]:  # before the rest is imported, or it is imported twice
            from holdfast.cli.process.hash_seed import fix_hash_seed

            fix_hash_seed()
        from holdfast.cli.root import holdfast

        holdfast(prog_name="holdfast")
    except KeyboardInterrupt:  # Ctrl-C before the command has begun, while modules are loaded
        print(file=sys.stderr)
        sys.exit(_INTERRUPTED)
