"""Events that cannot be read: written by hand, or before the store refused such values."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.errors import DeterminismError
from holdfast.types import Event

UNREADABLE: Final = (msgspec.MsgspecError, RecursionError)


def unreadable(event: Event, error: Exception) -> DeterminismError:
    """Return the error that makes this run stuck; other runs are not concerned."""
    key = "" if event.key is None else f" {event.key}"
    return DeterminismError(
        f"the log has an event that cannot be read, {event.type}{key}: {error}. "
        "Terminate the run, or fork it with an index from before that event",
        key=event.key,
    )
