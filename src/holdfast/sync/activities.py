"""Generated from the asynchronous module by scripts/generate_sync.py."""

from __future__ import annotations

from holdfast.client.activities import Activities
from holdfast.sync.base import SyncGroup


class SyncActivities(SyncGroup[Activities]):
    """The activities of all runs: what completes outside of a worker is completed here.

    An attempt is named by its token, which its code passes on: see `ActivityContext.token`.
    """

    def complete(self, token: str, result: object = None) -> None:
        """Complete an activity, by the token of its attempt.

        Raises TokenUnknown if the attempt has ended or another one has followed it, and
        PayloadError.

        ```python
        try:
            client.activities.complete(token, {"scanned": True})
        except TokenUnknown:
            print("the attempt is over")
        ```
        """
        return self._call(self._target.complete, token, result)

    def fail(self, token: str, error: str | Exception, *, retryable: bool = True) -> bool:
        """Fail an attempt of an activity, by its token. Return True if it will be tried again.

        It is tried again as its retry policy says, unless `retryable` is False. Raises
        TokenUnknown if the attempt has ended or another one has followed it.

        ```python
        try:
            client.activities.fail(token, "the scanner is broken", retryable=False)
        except TokenUnknown:
            print("the attempt is over")
        ```
        """
        return self._call(self._target.fail, token, error, retryable=retryable)
