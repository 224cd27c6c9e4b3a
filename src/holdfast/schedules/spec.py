"""When a schedule fires, as one value of plain texts and numbers that any worker can evaluate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import Final

from holdfast.schedules.cron import next_match
from holdfast.schedules.zones import load_zone

_MICROS: Final = 1_000_000
_LAST: Final = 253_402_214_400 * _MICROS  # 9999-12-31, which every time zone can show


@dataclass(frozen=True, slots=True)
class Spec:
    """When a schedule fires: by a cron expression or at an interval, one of the two.

    Moments (`_at`) are microseconds since 1970 UTC, lengths (`_micros`) microseconds. `parse_spec`
    makes one from what people write, with its checks; a stored one needs none.

    `cron` is evaluated in `timezone`, an IANA name. `every_micros` counts elapsed time from
    `anchor_at`, in both directions. The first tick is at `start_at` or later, the last one at
    `end_at` or earlier. Each tick fires up to `jitter_micros` late.

    >>> from holdfast.schedules import parse_spec
    >>> spec = parse_spec(every="15m")
    >>> spec.next_after(0) == spec.every_micros == 900_000_000
    True
    """

    cron: str | None = None
    every_micros: int | None = None
    anchor_at: int = 0
    timezone: str = "UTC"
    start_at: int | None = None
    end_at: int | None = None
    jitter_micros: int = 0

    def next_after(self, moment: int) -> int | None:
        """Return the first tick after a moment, None if no tick follows.

        It looks at the 50 years that follow, up to the year 9999. Raises ConfigurationError if
        this machine does not know the time zone.
        """
        if self.start_at is not None:
            moment = max(moment, self.start_at - 1)
        tick = self._next(moment)
        if tick is None or tick > (_LAST if self.end_at is None else self.end_at):
            return None
        return tick

    def ticks_between(self, after: int, until: int, limit: int) -> list[int]:
        """Return the ticks later than `after` and not later than `until`: the first `limit`."""
        return list(islice(self._ticks(after, until), limit))

    def fire_at(self, schedule: str, tick: int) -> int:
        """Return when a tick of a schedule fires: later by its part of the jitter.

        The same on every machine. The delay is less than the jitter and less than the time to
        the next tick, so that ticks fire in their order.
        """
        if not self.jitter_micros:
            return tick
        following = self.next_after(tick)
        width = self.jitter_micros if following is None else following - tick
        digest = blake2b(f"{schedule}\n{tick}".encode(), digest_size=8).digest()
        return tick + (int.from_bytes(digest, "big") * min(width, self.jitter_micros) >> 64)

    def _ticks(self, after: int, until: int) -> Iterator[int]:
        tick = self.next_after(after)
        while tick is not None and tick <= until:
            yield tick
            tick = self.next_after(tick)

    def _next(self, moment: int) -> int | None:
        if self.cron is None:
            every = self.every_micros or 0
            return self.anchor_at + ((moment - self.anchor_at) // every + 1) * every
        found = next_match(self.cron, load_zone(self.timezone), moment // _MICROS)
        return None if found is None else found * _MICROS
