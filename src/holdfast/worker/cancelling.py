"""Wait for attempts that the code of their run has given up: its next effects begin after them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Final

from holdfast.events import DELIVERED
from holdfast.runtime.turn.turn import Call
from holdfast.types import TurnCommit
from holdfast.worker.attempts import StepExecution

_GRACE_SECONDS: Final = 5.0  # for async code to clean up


class Cancelling:
    """The cancelled attempts of a run, and what waits for their ends: calls of steps, and a commit.

    A commit waits only if one of them commits: what it starts, such as an activity, may undo that
    one, and so may what follows a suspension or the end of the run. `ended` is called when all
    have ended.
    """

    __slots__ = ("_attempts", "_ended", "_groups", "calls", "commit")

    def __init__(self, ended: Callable[[Cancelling], None]) -> None:
        self.calls: list[Call] = []
        self.commit: TurnCommit | None = None
        self._ended, self._groups = ended, 0
        self._attempts: list[StepExecution] = []

    def cancel(self, running: dict[str, StepExecution], keys: Collection[str]) -> bool:
        """Cancel the steps with these keys; return False if there is nothing to wait for."""
        self.calls = [call for call in self.calls if call.key not in keys]
        cancelled: dict[asyncio.Future[object], StepExecution] = {}
        for key in keys:
            execution = running.pop(key, None)
            if execution is not None and (future := execution.cancel()) is not None:
                cancelled[future] = execution
        if cancelled:
            self._groups += 1
            self._attempts += cancelled.values()
            waiting = asyncio.create_task(wait_for_ends(cancelled))
            waiting.add_done_callback(self._cleaned_up)
        return bool(cancelled)

    def keeps(self, commit: TurnCommit) -> bool:
        """Return True if a commit must wait, and keep it; ends of steps need not."""
        if not any(map(_commits, self._attempts)):
            return False
        if commit.then is None and all(event.type in DELIVERED for event in commit.events):
            return False
        self.commit = commit
        return True

    def _cleaned_up(self, _: object) -> None:
        self._groups -= 1
        if self._groups == 0:
            self._ended(self)


async def wait_for_ends(cancelled: Mapping[asyncio.Future[object], StepExecution]) -> None:
    """Wait for cancelled attempts for a while, for one that commits until its end is known."""
    pending = set(cancelled)
    while pending:
        _, pending = await asyncio.wait(pending, timeout=_GRACE_SECONDS)
        pending = {each for each in pending if _commits(cancelled[each])}


def _commits(attempt: StepExecution) -> bool:
    return attempt.commits and attempt.recorded is None
