"""The policy by which a failed step or activity is tried again."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias, TypeVar, cast

import msgspec

from holdfast.errors import ConfigurationError
from holdfast.values.durations import Duration, seconds
from holdfast.values.numbers import number_within, whole_number

Answer = TypeVar("Answer")
Growth: TypeAlias = Literal["exp", "fixed", "linear"]


@dataclass(frozen=True, kw_only=True)
class Retry:
    """How often, and after what pauses, a failed step or activity is tried again.

    `attempts` counts all tries, the first included; None never gives up. The pause after the
    n-th failed try is `base` (fixed), `n * base` (linear) or `base * factor ** (n - 1)` (exp),
    at most `max`, and then up to `jitter` times itself shorter or longer. `should_retry`
    is called with the exception; if it returns False, the step or activity has failed. It may be
    async, and take up to a minute; one that raises says no. `delay` is called with the exception
    too: it returns the pause, such as a server's Retry-After, or None for the policy's own.

    ```python
    Retry(attempts=5, base="500ms", should_retry=lambda error: not isinstance(error, KeyError))
    Retry(delay=lambda error: getattr(error, "retry_after", None))
    ```

    Raises ConfigurationError for options that cannot work.
    """

    NEVER: ClassVar[Retry]

    attempts: int | None = 3
    backoff: Growth = "exp"
    base: Duration = "1s"
    max: Duration = "60s"
    factor: float = 2.0
    jitter: float = 0.2
    should_retry: Callable[[Exception], bool | Awaitable[bool]] | None = None
    delay: Callable[[Exception], Duration | None] | None = None
    base_seconds: float = field(init=False, repr=False, compare=False)
    max_seconds: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.attempts is not None:
            whole_number(self.attempts, "Retry", "attempts", 1)
        if self.backoff not in ("exp", "fixed", "linear"):
            raise ConfigurationError(f"backoff must be exp, fixed or linear, not {self.backoff!r}")
        for name, length in (("base", self.base), ("max", self.max)):
            try:
                object.__setattr__(self, f"{name}_seconds", seconds(length))
            except ConfigurationError as error:
                raise ConfigurationError(f"Retry: {name}: {error}") from None
        if self.base_seconds > self.max_seconds:
            raise ConfigurationError(f"base ({self.base}) is longer than max ({self.max})")
        number_within(self.factor, "Retry", "factor", 1, sys.float_info.max)
        number_within(self.jitter, "Retry", "jitter", 0, 1)
        for name in ("should_retry", "delay"):
            asked: object = getattr(self, name)
            if asked is not None and not callable(asked):
                raise ConfigurationError(f"{name} must be a function of the error, not {asked!r}")

    def lasts(self, attempt: int) -> bool:
        """Return True if there is another try after `attempt` tries."""
        return self.attempts is None or attempt < self.attempts

    def accepts(self, error: BaseException) -> bool | Awaitable[bool]:
        """Return True if the step or activity is tried again after `error`.

        For an async `should_retry`, return an awaitable of that.
        """
        return self.should_retry is None or _ask(self.should_retry, error)

    def asked_seconds(self, error: BaseException) -> float | None:
        """Return the pause that the error asks for in seconds, None for the policy's own.

        Raises ConfigurationError if `delay` returns something that is not a length of time.
        """
        asked = None if self.delay is None else _ask(self.delay, error)
        return None if asked is None else seconds(asked)

    def delay_seconds(self, attempt: int, random: Callable[[], float]) -> float:
        """Return the pause after `attempt` failed tries; `random` draws from [0, 1)."""
        pause = min(self._growth(attempt) * self.base_seconds, self.max_seconds)
        return pause * (1 + self.jitter * (2 * random() - 1))

    def _growth(self, attempt: int) -> float:
        if self.backoff == "fixed":
            return 1.0
        if self.backoff == "linear":
            return float(attempt)
        try:
            return float(self.factor) ** (attempt - 1)
        except OverflowError:
            return sys.float_info.max  # infinity times a base of 0 would be NaN


def _ask(function: Callable[[Exception], Answer], error: BaseException) -> Answer:
    """Call a function of a policy; if it exits, as a command line does, it has failed."""
    try:
        # Code that raises another BaseException is rare; its functions are asked about it as well.
        return function(cast("Exception", error))
    except (SystemExit, KeyboardInterrupt) as exits:
        raise RuntimeError(f"it raised {exits!r}") from exits


Retry.NEVER = Retry(attempts=1)


class RecordedRetry(msgspec.Struct, frozen=True):
    """The policy of a recorded call, without jitter: the database draws that."""

    attempts: int | None = None
    backoff: Growth = "exp"
    base: float = 1.0
    max: float = 60.0
    factor: float = 2.0

    def pause_seconds(self, attempt: int) -> float:
        """Return the usual pause after `attempt` failed attempts."""
        policy = Retry(backoff=self.backoff, base=self.base, max=self.max, factor=self.factor)
        return policy.delay_seconds(attempt, lambda: 0.5)
