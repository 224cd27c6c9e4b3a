"""Where a worker's claims look, so that they can pass over what is long taken.

Until vacuum has come by, an index keeps an entry for each task that ever was due, and a
transaction that is open for long anywhere keeps vacuum away. A claim therefore looks behind the
watermark: at what came due since the last claims. Now and then it looks for what they left: tasks
that were committed late, whose rows were locked, or whose leases ran out. It looks at everything
at once as long as that is cheap. Else the past is cut into parts that are, and it takes one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

_SECOND: Final = 1_000_000
_OVERLAP: Final = _SECOND  # longer than a task's row takes from its clock to its commit
_LAG: Final = 10 * _SECOND  # what a claim left of this time, the next ones look for
_SWEEP_EVERY: Final = 50  # claims
_SWEEP_SECONDS: Final = 0.05
_DEAR: Final = 200  # pages that one part may cost
_PARTS: Final = 16  # into which a dear one is cut at the most
_AGES: Final = [round(60 * _SECOND * 4**n) for n in range(10)]  # from a minute to half a year
_WHOLE_AGAIN: Final = 100_000  # µs
_PARTS_AGAIN: Final = 400_000


@dataclass(frozen=True, slots=True)
class Look:
    """A range of due times: `since` None is the beginning, `until` None is now."""

    since: int | None = None
    until: int | None = None
    leased_since: int | None = None  # leases that ran out; None: as `since`, if that is None
    is_part: bool = False


@dataclass(slots=True)
class Watermark:
    """How far a worker's claims have come, and which part of the past is next."""

    reached: int | None = None
    wanting: bool = False
    clock: Callable[[], float] = time.monotonic
    _claims: int = 0
    _rests_until: float = 0.0
    _swept_at: int = 0  # engine time: leases were looked for
    _edges: list[int] = field(default_factory=list[int])  # between the parts, the newest first
    _part: int = 0
    _last_pages: int = 0

    @property
    def is_cut(self) -> bool:
        """Return True while a look at everything costs too much."""
        return bool(self._edges)

    def looks(self) -> list[Look]:
        """Return where the next claim looks, as long as it has room."""
        self._claims += 1
        if self.reached is None:
            return [self._sweep(Look())]
        since = self.reached - _OVERLAP
        rested = self.clock() >= self._rests_until
        if not (rested and (self.wanting or self._claims >= _SWEEP_EVERY)):
            return [Look(since)]
        if not self._edges:
            return [self._sweep(Look())]
        part = self._next_part(self.reached)
        return [self._sweep(Look(since, leased_since=self._swept_at - _OVERLAP)), part]

    def advance(self, now: int, reached: int | None, *, wanting: bool) -> None:
        """Note how far a claim came, and whether it found less than it asked for."""
        self.wanting = wanting
        self.reached = max(self.reached or 0, reached or 0, now - _LAG if wanting else 0) or None
        if self.reached is not None and self.reached > now + _LAG:
            self.reached = None  # the clock was set back

    def paid(self, look: Look, now: int, pages: int) -> None:
        """Note what a look for left tasks cost: dear parts are cut, cheap ones joined."""
        self._swept_at = now
        self._rests_until = self.clock() + _SWEEP_SECONDS * max(1.0, pages / _DEAR)
        if look.is_part or look == Look():
            self._note_part(look, now, pages)

    def again_after(self, first: Look) -> int | None:
        """Return how soon to look for what a claim passed over, in µs; None: all was seen."""
        if self._edges:
            return _PARTS_AGAIN if self._part else None
        return None if first.since is None else _WHOLE_AGAIN

    def _sweep(self, look: Look) -> Look:
        self._claims = 0
        return look

    def _next_part(self, reached: int) -> Look:
        since = self._edges[self._part] if self._part < len(self._edges) else None
        until = self._edges[self._part - 1] if self._part else reached
        return Look(since, until, since, is_part=True)

    def _note_part(self, look: Look, now: int, pages: int) -> None:
        if pages > _DEAR:
            cuts = _cuts(look, self.reached or now, pages)
            self._edges[self._part : self._part] = cuts
            self._part += len(cuts) + 1
        elif self._part and pages + self._last_pages < _DEAR // 4:
            del self._edges[self._part - 1]
            pages += self._last_pages
        else:
            self._part += 1
        self._last_pages = pages
        if self._part > len(self._edges):
            self._part = 0


def _cuts(look: Look, now: int, pages: int) -> list[int]:
    """Return where to cut a part, the newest edge first."""
    until = now if look.until is None else look.until
    if look.since is None:
        return [now - age for age in _AGES if now - age < until]
    count = min(_PARTS, 1 + pages // _DEAR, max(1, (until - look.since) // 1000))
    width = (until - look.since) / count
    return [round(until - width * place) for place in range(1, count)]
