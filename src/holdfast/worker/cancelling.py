"""Wait for attempts that the code of their run has given up: its next effects begin after them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from holdfast.worker.attempts import StepExecution

_GRACE_SECONDS: Final = 5.0  # for async code to clean up


async def wait_for_ends(cancelled: Mapping[asyncio.Future[object], StepExecution]) -> None:
    """Wait for cancelled attempts for a while, for one that commits until its end is known."""
    pending = set(cancelled)
    while pending:
        _, pending = await asyncio.wait(pending, timeout=_GRACE_SECONDS)
        pending = {each for each in pending if _commits(cancelled[each])}


def _commits(attempt: StepExecution) -> bool:
    return attempt.commits and attempt.recorded is None
