"""The call of an activity, as the log of its run has it."""

from __future__ import annotations

import msgspec

from holdfast.retry import Growth, Retry


class Policy(msgspec.Struct, frozen=True):
    """The retry policy of a call, without jitter: the database draws that."""

    attempts: int | None = None
    backoff: Growth = "exp"
    base: float = 1.0
    max: float = 60.0
    factor: float = 2.0

    def pause_seconds(self, attempt: int) -> float:
        """Return the usual pause after `attempt` failed attempts."""
        policy = Retry(backoff=self.backoff, base=self.base, max=self.max, factor=self.factor)
        return policy.delay_seconds(attempt, lambda: 0.5)


class ScheduledCall(msgspec.Struct, frozen=True):
    """The call of an activity. `misfit` is True if its input never fitted its code."""

    input: msgspec.Raw
    retry: Policy
    start_to_close: float | None = None
    heartbeat_timeout: float | None = None
    misfit: bool = False

    @property
    def arguments(self) -> str:
        """The arguments as JSON text."""
        return bytes(self.input).decode()

    def has_attempt(self, number: int) -> bool:
        """Return True if the policy allows an attempt of this number."""
        return self.retry.attempts is None or number <= self.retry.attempts


read_call = msgspec.json.Decoder(ScheduledCall).decode
