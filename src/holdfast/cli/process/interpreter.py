"""The Python process of long-running commands: its event loop, its end, its garbage collection."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

from holdfast.values.loggers import get_logger
from holdfast.worker.threads import STEP_THREADS

_THREADS: Final = "asyncio"  # the prefix of the names of threads of `asyncio.to_thread`
_LEFT: Final = (STEP_THREADS, f"{_THREADS}_")
_IDLE_SECONDS: Final = 0.2  # in which threads end that have nothing to do
_PATIENCE_SECONDS: Final = 1.0  # after which the threads are named that the process waits for

logger = get_logger("holdfast.worker")


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the event loop of uvloop if it is installed: it saves a fifth of the worker's CPU."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


@contextmanager
def runner_that_leaves_threads() -> Generator[asyncio.Runner]:
    """Make a runner whose end does not wait for the threads of `asyncio.to_thread`.

    Call `end_despite_threads` after it: the end of the process would wait for them, too.
    """
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        loop, threads = runner.get_loop(), ThreadPoolExecutor(thread_name_prefix=_THREADS)
        loop.set_default_executor(threads)
        try:
            yield runner
        finally:
            loop.set_default_executor(ThreadPoolExecutor(1))  # the runner waits for this one
            threads.shutdown(wait=False, cancel_futures=True)


def end_despite_threads(code: int) -> None:
    """End the process with this code if the thread of a step still runs: Python would wait for it.

    The worker has drained: other workers have its runs, and the result of the thread is unused.
    Threads that the code started by itself may have more to do: Python waits for them, and what it
    waits for is logged.
    """
    threads = [each for each in threading.enumerate() if each.name.startswith(_LEFT)]
    until = time.monotonic() + _IDLE_SECONDS
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    waiting = threading.Timer(_PATIENCE_SECONDS, _name_threads)
    waiting.daemon = True
    waiting.start()


def _name_threads() -> None:
    main = threading.main_thread()
    names = [each.name for each in threading.enumerate() if not (each.daemon or each is main)]
    if names:
        logger.warning(
            "the worker has stopped, and its process waits for %d thread(s) that its code has "
            "started: %s. End them where they were made, such as in a lifespan; another signal "
            "ends the process at once",
            len(names),
            ", ".join(names),
        )


def skip_what_exists() -> None:
    """Let the garbage collector skip the objects that exist now: modules, types, functions.

    Nearly none is garbage, so it does not look for any first. How often it runs is set when the
    command line begins.
    """
    gc.freeze()
