"""What long-running commands choose: the event loop, and what the garbage collector skips."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the event loop of uvloop if it is installed: it saves a fifth of the worker's CPU."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def skip_what_exists() -> None:
    """Let the garbage collector skip the objects that exist now: modules, types, functions.

    Nearly none is garbage, so it does not look for any first. How often it runs is set when the
    command line begins.
    """
    gc.freeze()
