"""What led to an error, and whether it is the cancel of the run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final, cast

# asyncio hands the message of a cancel on to all that the task waits for. Timeouts and groups of
# tasks cancel without one.
RUN_CANCEL: Final = "the run is cancelled"


def causes(
    error: BaseException, but: BaseException | None = None
) -> Iterator[tuple[BaseException, bool]]:
    """Yield an error and all that led to it, with True for those that were only being handled.

    What comes after `but` is left out.
    """
    left: list[tuple[BaseException, bool]] = [(error, False)]
    visited = {id(but)}
    while left:
        one, handled = left.pop()
        if id(one) in visited:
            continue
        visited.add(id(one))
        yield one, handled
        if isinstance(one, BaseExceptionGroup):
            group = cast("BaseExceptionGroup[BaseException]", one)
            left += [(member, handled) for member in group.exceptions]
        if one.__context__ is not None and one.__context__ is not one.__cause__:
            left.insert(0, (one.__context__, True))
        if one.__cause__ is not None:
            left.append((one.__cause__, handled))


def is_run_cancel(error: BaseException | None) -> bool:
    """Return True if an error is the cancel of the run."""
    return isinstance(error, asyncio.CancelledError) and RUN_CANCEL in error.args
