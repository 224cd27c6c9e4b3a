"""Generated from the asynchronous module by scripts/generate_sync.py."""

from __future__ import annotations

from holdfast.client.activities import Activities
from holdfast.sync.base import SyncGroup


class SyncActivities(SyncGroup[Activities], of=Activities):
    """The activities of all runs: what completes outside of a worker is completed here."""

    def complete(self, token: str, result: object = None) -> None:
        """Complete an activity, by the token of its attempt."""
        return self._call(self._target.complete, token, result)

    def fail(self, token: str, error: str | Exception, *, retryable: bool = True) -> bool:
        """Fail an attempt of an activity, by its token. Return True if it will be tried again."""
        return self._call(self._target.fail, token, error, retryable=retryable)
