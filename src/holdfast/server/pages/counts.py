"""How many runs are in each state, for the filters of the list: capped, and asked once for all."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, cast, get_args

from holdfast.client.filters import RunFilters
from holdfast.errors import DatabaseError, HoldfastError
from holdfast.insight.wording import number
from holdfast.server.site import Site
from holdfast.types import OPEN_STATES, EndStatus

_MOST: Final = 10_000
_MOST_OPEN: Final = 500
_SECONDS: Final = 5.0  # that an answer is shown
_KEPT: Final = 100


class _Counts:
    def __init__(self, _: Site) -> None:
        self.lock = asyncio.Lock()
        self.found: dict[str, tuple[float, Mapping[str, str]]] = {}


async def count_states(site: Site, filters: RunFilters) -> Mapping[str, str]:
    """Return how many runs of the workflow that is filtered by, or of all, are in each state.

    Empty with other filters, which could only be counted by reading all runs, and where the
    question takes too long.
    """
    rest = filters.keys() - {"states", "names", "limit", "cursor"}
    given = filters.get("names", ())
    names = [given] if isinstance(given, str) else list(cast("Iterable[str]", given))  # of a query
    if rest or len(names) > 1 or not all("/" in name for name in names):
        return {}
    name, counts = names[0] if names else "", site.kept(_Counts)
    async with counts.lock:
        now = asyncio.get_running_loop().time()
        counts.found = {key: each for key, each in counts.found.items() if each[0] > now}
        if name not in counts.found:
            if len(counts.found) >= _KEPT:
                counts.found.clear()
            counts.found[name] = (now + _SECONDS, await _ask(site, name))
        return counts.found[name][1]


async def _ask(site: Site, name: str) -> Mapping[str, str]:
    try:
        found = await site.store.reads.count_runs([name] if name else None, _MOST + 1)
    except DatabaseError:
        return {}
    total: Counter[str] = Counter()
    for of_status in found.values():
        total.update({status: runs for status, runs in of_status.items() if status != "running"})
    ended = {str(status): _capped(total[status], _MOST) for status in get_args(EndStatus)}
    return {**ended, **await _open(site, name)}


async def _open(site: Site, name: str) -> Mapping[str, str]:
    """Return how many runs are in each state of those that have not ended."""
    counts: dict[str, str] = {}
    for state in OPEN_STATES:
        asked: RunFilters = {"states": state, "limit": _MOST_OPEN + 1}
        if name:
            asked["names"] = name
        try:
            page = await site.reader.runs.list(**asked)
        except HoldfastError:  # too slow, or no such workflow
            continue
        found = len(page.runs)
        more = page.searched_until is not None and found <= _MOST_OPEN
        counts[state] = number(found, more=True) if more else _capped(found, _MOST_OPEN)
    return counts


def _capped(count: int, most: int) -> str:
    return number(min(count, most), more=count > most)
