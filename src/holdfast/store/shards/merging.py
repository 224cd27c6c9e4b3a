"""One answer of the answers of all shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from heapq import merge
from itertools import chain, islice
from typing import Any, Final, TypeVar
from uuid import UUID

from msgspec.structs import replace

from holdfast.types import (
    AlertInfo,
    HeldKey,
    LoadSample,
    Pause,
    RecordPage,
    RunCounts,
    RunFilter,
    RunRecord,
    Status,
    SweepShare,
)

T = TypeVar("T")
K = TypeVar("K")


def merge_pages(pages: Sequence[RecordPage], where: RunFilter) -> RecordPage:
    """Return the newest runs of all pages.

    A cursor is a place in time, the same in all shards. What is older than where the page of any
    shard ends comes later: that shard may have more before it.
    """
    ends = [place_of(page.cursor) for page in pages if page.cursor is not None]
    frontier = max(ends, default=(0, ""))
    ordered = merge(*(page.runs for page in pages), key=_place, reverse=True)
    runs = list(islice(ordered, where.limit + 1))
    shown = [run for run in runs[: where.limit] if _place(run) >= frontier]
    if len(shown) == where.limit and (ends or len(runs) > len(shown)):
        return RecordPage(shown, cursor_of(*_place(shown[-1])))
    if not ends:
        return RecordPage(shown, None)
    return RecordPage(shown, cursor_of(*frontier), frontier[0])


def cut_short(pages: Mapping[int, RecordPage], share: int) -> list[int]:
    """Return the shards whose pages, full with a share, end before any that searches for more."""
    ends = {n: place_of(page.cursor) for n, page in pages.items() if page.cursor is not None}
    full = {number for number in ends if len(pages[number].runs) == share}
    searched = max((end for number, end in ends.items() if number not in full), default=(0, ""))
    return [number for number in full if ends[number] > searched]


def place_of(cursor: str) -> tuple[int, str]:
    """Return the moment and the id at which a cursor of runs stands."""
    moment, _, run_id = cursor.partition("/")
    return int(moment), run_id


def cursor_of(moment: int, run_id: str) -> str:
    """Return the cursor behind a run."""
    return f"{moment}/{run_id}"


def _place(run: RunRecord) -> tuple[int, str]:
    return run.created_at, str(run.run_id)


def merge_counts_by(counts: Sequence[RunCounts], until: datetime | None) -> RunCounts:
    """Return the sums, most first, of runs that were created since `until`."""
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each.counts)
    return replace(counts[0], counts=dict(total.most_common()), searched_until=until)


def merge_counts(counts: Iterable[dict[str, dict[Status, int]]]) -> dict[str, dict[Status, int]]:
    """Return the sums by workflow and status."""
    total: dict[str, Counter[Status]] = {}
    for each in counts:
        for name, by_status in each.items():
            total.setdefault(name, Counter()).update(by_status)
    return {name: dict(by_status) for name, by_status in total.items()}


# What is not the same in all shards, and how it is joined.
_JOINED: Final[Mapping[str, Callable[[Sequence[Any]], Any]]] = {
    **dict.fromkeys(("ended", "full_keys", "held", "open_runs", "runs", "used", "waiting"), sum),
    "workers": sum,
    "is_current": any,
    "ramp_percent": max,
    "first_known_at": min,
    "signed_on_at": max,
    "more_wait": any,
    "needed_for": lambda found: tuple(sorted(set(chain.from_iterable(found)))),
    "workflows": lambda found: tuple(sorted(set(chain.from_iterable(found)))),
}


def unite(answers: Iterable[Any]) -> Any:
    """Return the entries of lists, or of sets, that all shards are told alike: each once."""
    found = list(answers)
    if isinstance(found[0], frozenset):
        return frozenset[str]().union(*found)
    if all(isinstance(each, str) for each in chain.from_iterable(found)):
        return sorted(set(chain.from_iterable(found)))
    return sorted(map(_joined, _grouped(found, _name).values()), key=_order)


def _joined(found: Sequence[Any]) -> Any:
    """Return the first of these, with what is joined of all."""
    joined: dict[str, Any] = {}
    for field, join in _JOINED.items():
        values = [getattr(each, field, None) for each in found]
        if known := [value for value in values if value is not None]:
            joined[field] = join(known)
    return replace(found[0], **joined)


def _order(entry: Any) -> tuple[str, str, str, int]:
    """Return the order of entries as far as it is that of names; builds are the newest first."""
    of = getattr(entry, "rule", entry)
    app, scope, name = (str(getattr(of, field, "")) for field in ("app", "scope", "name"))
    return app, scope, name, getattr(of, "version", 0)


def _name(entry: Any) -> object:
    """Return what names an entry among those of its kind."""
    fields = ("app", "build", "name", "version", "rule", "scope")
    return tuple(str(getattr(entry, field, None)) for field in fields)


def merge_pauses(found: Mapping[int, Sequence[Pause]]) -> list[Pause]:
    """Return each pause once; the reason of one that did not reach all shards says where it is."""
    shards: dict[object, list[int]] = {}
    for number, some in found.items():
        for each in some:
            shards.setdefault(_name(each), []).append(number)
    pauses: list[Pause] = unite(found.values())
    return [
        each if len(shards[_name(each)]) == len(found) else _in_part(each, shards[_name(each)])
        for each in pauses
    ]


def _in_part(pause: Pause, shards: Sequence[int]) -> Pause:
    where = f"in shard {', '.join(map(str, shards))} alone"
    return replace(pause, reason=where if pause.reason is None else f"{pause.reason}; {where}")


def merge_ids(found: Iterable[Sequence[UUID]], limit: int) -> list[UUID]:
    """Return the first ids of all."""
    return sorted(chain.from_iterable(found))[:limit]


def merge_samples(found: Sequence[Sequence[LoadSample]]) -> list[LoadSample]:
    """Return the sums by part and queue.

    A shard that was looked at more seldom in a part than others counts as if it had been looked at
    as often: `busy` and `places` are sums of so many looks.
    """
    most: dict[int, int] = {}
    for row in chain.from_iterable(found):
        most[row.part] = max(row.looks, most.get(row.part, 0))
    total: dict[tuple[int, str], LoadSample] = {}
    for rows in found:
        own = {row.part: row.looks for row in rows if not row.queue}
        for row in rows:
            share = most[row.part] / max(own.get(row.part, row.looks), 1)
            known = total.get((row.part, row.queue), replace(row, looks=0, due=0, busy=0, places=0))
            total[row.part, row.queue] = replace(
                known,
                looks=max(known.looks, row.looks),
                due=known.due + row.due,
                busy=known.busy + round(row.busy * share),
                places=known.places + round(row.places * share),
            )
    return [total[place] for place in sorted(total)]


def merge_alerts(found: Iterable[Sequence[AlertInfo]]) -> list[AlertInfo]:
    """Return each alert as it stands in the shard where it is worst."""

    def badness(alert: AlertInfo) -> tuple[bool, bool, float]:
        value = 0.0 if alert.value is None else alert.value
        of_few = alert.rule.kind == "no_worker"
        return alert.is_active, alert.looked_at is not None, -value if of_few else value

    by_name = _grouped(found, lambda each: (each.app, each.rule.name))
    return [
        replace(max(some, key=badness), error=next((x.error for x in some if x.error), None))
        for _, some in sorted(by_name.items())
    ]


def merge_held_keys(found: Iterable[Sequence[HeldKey]], limit: int) -> list[HeldKey]:
    """Return the held keys of all shards by rule, at most so many of each."""
    by_rule = _grouped(found, lambda each: each.rule)
    return [each for some in by_rule.values() for each in some[:limit]]


def merge_shares(found: Iterable[Sequence[SweepShare]]) -> list[SweepShare]:
    """Return the sums by workflow."""
    by_name = _grouped(found, lambda each: each.name)
    return [_sum_of(some) for _, some in sorted(by_name.items())]


def _sum_of(found: Sequence[SweepShare]) -> SweepShare:
    oldest = [each.oldest for each in found if each.oldest is not None]
    return SweepShare(
        name=found[0].name,
        due=sum(each.due for each in found),
        oldest=min(oldest) if len(oldest) == len(found) else None,  # None: since ever
        kept_for_child=sum(each.kept_for_child for each in found),
        kept_for_successor=sum(each.kept_for_successor for each in found),
        kept_for_retry=sum(each.kept_for_retry for each in found),
    )


def _grouped(found: Iterable[Sequence[T]], key: Callable[[T], K]) -> dict[K, list[T]]:
    groups: dict[K, list[T]] = {}
    for each in chain.from_iterable(found):
        groups.setdefault(key(each), []).append(each)
    return groups
