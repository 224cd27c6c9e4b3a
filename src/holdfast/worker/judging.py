"""Ask the policy of a step or an activity if a failed attempt is followed by another, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Final, TypeAlias

from holdfast.codec import CODE_ERRORS
from holdfast.definitions.recorded import Recorded
from holdfast.errors import PayloadError
from holdfast.values.loggers import get_logger

logger = get_logger("holdfast.run")

_LONGEST_SECONDS: Final = 60.0  # that an async should_retry may take

AnyRecorded: TypeAlias = Recorded[..., object]


def may_be_retried(function: AnyRecorded, error: BaseException) -> bool | Awaitable[bool]:
    """Return the answer of `should_retry` to an error, or an awaitable of it if that is async."""
    if isinstance(error, PayloadError):  # the same code gives the same value
        return False
    try:
        return function.retry.accepts(error)
    except CODE_ERRORS:
        return _failed(function)


async def decided(function: AnyRecorded, verdict: Awaitable[bool]) -> bool:
    """Return the answer of an async `should_retry`: False if it raises or takes over a minute."""
    try:
        async with asyncio.timeout(_LONGEST_SECONDS):
            return bool(await verdict)
    except (Exception, SystemExit, KeyboardInterrupt):
        return _failed(function)


def asked_pause(function: AnyRecorded, error: BaseException) -> float | None:
    """Return the pause that the error asks for, None for the policy's own."""
    try:
        return function.retry.asked_seconds(error)
    except CODE_ERRORS:
        logger.exception("delay of %s %s failed; the usual pause", function.kind, function.name)
        return None


def _failed(function: Recorded[Any, Any]) -> bool:
    logger.exception("should_retry of %s %s failed; no retry", function.kind, function.name)
    return False
