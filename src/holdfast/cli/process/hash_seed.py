"""A fixed order of sets for workflow code. It imports little: the process may start again."""

from __future__ import annotations

import os
import sys


def fix_hash_seed() -> None:
    """Start this process again with a fixed PYTHONHASHSEED unless it has one.

    A set of texts in workflow code must have the same order in every process that replays it.
    Whatever was imported before is imported twice, so call this first.
    """
    if os.environ.get("PYTHONHASHSEED", "random") == "random":
        environment = os.environ | {"PYTHONHASHSEED": "0"}
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
