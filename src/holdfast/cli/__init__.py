"""The command line. A command imports what it needs when it runs, so that every command is fast."""

from __future__ import annotations

import atexit
import errno
import gc
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

_COLLECTOR: Final = (100_000, 10, 100)
"""When the garbage collector runs: not while the 80 000 objects of a worker's modules are loaded.
With the defaults it visits them again and again, a seventh of the time, and the suspended runs of a
worker: another seventh."""

_UNWRITABLE: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.EPIPE}
_FAILED: Final = 1
_INTERRUPTED: Final = 130  # as holdfast.cli.exits has it, which is not loaded yet


def main() -> None:
    """Run `holdfast` with the process's arguments, and exit."""
    with _whole_output():
        _run()


@contextmanager
def _whole_output() -> Generator[None]:
    """Exit with code 1 if the output cannot be written: the disk is full, or nobody reads it."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed: `>&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in _UNWRITABLE or error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the last flush
        if error.errno != errno.EPIPE:  # `| head` has all that it wants
            told = f"the output cannot be written: {error.strerror}"
            print(f"holdfast: {told}. What the command did stays done.", file=sys.stderr)
        sys.exit(_FAILED)


def _run() -> None:
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
