"""End attempts of activities from outside, with the token that an attempt gave away."""

from __future__ import annotations

from uuid import UUID

from holdfast.client.coalescing import persist
from holdfast.client.session import Session
from holdfast.codec import describe, encode_error
from holdfast.errors import TokenUnknown
from holdfast.texts import check_text
from holdfast.types import ActivityEnd, ActivityOutcome, ErrorInfo

_LEASES = 1_000_000_000  # beyond what a task is ever leased
_SHAPE = "a token is RUN_ID:LEASE_NO:KEY, as the attempt gave it away"


def read_token(token: str) -> tuple[UUID, int, str]:
    """Read `RUN_ID:LEASE_NO:KEY`. Raises TokenUnknown for what nobody gave away."""
    run_id, _, rest = token.partition(":")
    lease_no, _, key = rest.partition(":")
    try:
        found = UUID(run_id), int(lease_no), key
    except ValueError:
        raise TokenUnknown(token, _SHAPE) from None
    if not key or "\0" in key or not 0 < found[1] < _LEASES:
        raise TokenUnknown(token, _SHAPE)
    return found


async def end_from_outside(
    session: Session,
    token: str,
    *,
    result: str | None = None,
    error: str | None = None,
    retryable: bool = True,
) -> ActivityOutcome:
    """Record how an attempt ended. Raises TokenUnknown where it is no open one."""
    run_id, lease_no, key = read_token(token)
    end = ActivityEnd(
        run_id=run_id,
        key=key,
        lease_no=lease_no,
        result=result,
        error=error,
        retryable=retryable,
    )
    ended = await persist(lambda: session.store.end_activities(None, [end]))
    session.tell(ended.notices)
    (outcome,) = ended.outcomes
    if outcome == "lost":
        raise TokenUnknown(token)
    return outcome


def explained(error: str | Exception) -> str:
    """Write an error as it is recorded."""
    if isinstance(error, Exception):
        return encode_error(describe(error))
    return encode_error(ErrorInfo(kind="builtins.Exception", message=check_text("message", error)))
