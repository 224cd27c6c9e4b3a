"""What a worker whose thread is held by user code gives up, for another thread to give back."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.types import Release, TurnCommit


class GivenUp(NamedTuple):
    """A task to release, once the log has the `results` of steps that it may not have yet."""

    release: Release
    results: TurnCommit | None = None
