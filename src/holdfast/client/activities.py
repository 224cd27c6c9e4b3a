"""`client.activities`: end attempts of activities from outside of their workers."""

from __future__ import annotations

from uuid import UUID

from holdfast.client.session import Group, Session
from holdfast.codec import describe, encode, encode_error
from holdfast.errors import InvalidInput, TokenUnknown
from holdfast.store.shared_calls import persist
from holdfast.types import ActivityEnd, ActivityOutcome, ErrorInfo
from holdfast.values.numbers import true_or_false
from holdfast.values.texts import check_text, clipped

_LEASES = 1_000_000_000  # more than a task ever has
_SHAPE = "a token is RUN_ID:LEASE_NO:@BEGAN/KEY, as `current_activity().token` gives it"


class Activities(Group):
    """The activities of all runs: what completes outside of a worker is completed here.

    An attempt is named by its token, which its code passes on: see `ActivityContext.token`.
    """

    async def complete(self, token: str, result: object = None) -> None:
        """Complete an activity, by the token of its attempt.

        Raises TokenUnknown if the attempt has ended or another one has followed it, and
        PayloadError.

        ```python
        try:
            await client.activities.complete(token, {"scanned": True})
        except TokenUnknown:
            print("the attempt is over")
        ```
        """
        await _end_attempt(self._session, token, result=encode(result))

    async def fail(self, token: str, error: str | Exception, *, retryable: bool = True) -> bool:
        """Fail an attempt of an activity, by its token. Return True if it will be tried again.

        It is tried again as its retry policy says, unless `retryable` is False. Raises
        TokenUnknown if the attempt has ended or another one has followed it.

        ```python
        try:
            await client.activities.fail(token, "the scanner is broken", retryable=False)
        except TokenUnknown:
            print("the attempt is over")
        ```
        """
        true_or_false(retryable, "retryable")
        outcome = await _end_attempt(
            self._session, token, error=_encode_failure(error), retryable=retryable
        )
        return outcome == "retried"


def read_token(token: str) -> tuple[UUID, int, str]:
    """Read `RUN_ID:LEASE_NO:KEY`. Raises TokenUnknown for another text.

    The key may begin with `@BEGAN/`, which the store reads: it also gets tokens from clients of
    earlier releases.
    """
    if not isinstance(token, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(f"the token {clipped(token)} is not a str")
    run_id, _, rest = token.partition(":")
    lease_no, _, key = rest.partition(":")
    try:
        found = UUID(run_id), int(lease_no), key
    except ValueError:
        raise TokenUnknown(token, _SHAPE) from None
    if not key or "\0" in key or not 0 < found[1] < _LEASES:
        raise TokenUnknown(token, _SHAPE)
    return found


async def _end_attempt(
    session: Session,
    token: str,
    *,
    result: str | None = None,
    error: str | None = None,
    retryable: bool = True,
) -> ActivityOutcome:
    """Record how an attempt ended. Raises TokenUnknown if it is not open."""
    run_id, lease_no, key = read_token(token)
    end = ActivityEnd(
        run_id=run_id, key=key, lease_no=lease_no, result=result, error=error, retryable=retryable
    )
    ended = await persist(lambda: session.store.end_activities(None, [end]))
    session.tell(ended.notices)
    (outcome,) = ended.outcomes
    if outcome == "lost":
        raise TokenUnknown(token)
    return outcome


def _encode_failure(error: str | Exception) -> str:
    """Return an error as it is recorded."""
    if isinstance(error, Exception):
        return encode_error(describe(error))
    return encode_error(ErrorInfo(kind="builtins.Exception", message=check_text("message", error)))
