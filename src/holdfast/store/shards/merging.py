"""One answer of the answers of all shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from heapq import merge
from itertools import chain, islice
from typing import Any, Final
from uuid import UUID

from msgspec.structs import replace

from holdfast.types import RecordPage, RunCounts, RunFilter, RunRecord, Status


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


def merge_counts_by(counts: Sequence[RunCounts]) -> RunCounts:
    """Return the sums, most first."""
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each.counts)
    since = [each.searched_until for each in counts if each.searched_until is not None]
    return replace(
        counts[0], counts=dict(total.most_common()), searched_until=max(since, default=None)
    )


def merge_counts(counts: Iterable[dict[str, dict[Status, int]]]) -> dict[str, dict[Status, int]]:
    """Return the sums by workflow and status."""
    total: dict[str, Counter[Status]] = {}
    for each in counts:
        for name, by_status in each.items():
            total.setdefault(name, Counter()).update(by_status)
    return {name: dict(by_status) for name, by_status in total.items()}


# How much of what there is in each shard: of one name, it is added up.
_COUNTS: Final = (
    "ended", "full_keys", "held", "open_runs", "runs", "used", "waiting", "workers",
)  # fmt: skip


def unite(answers: Iterable[Any]) -> Any:
    """Return the entries of lists, or of sets, that all shards are told alike: each once."""
    found = list(answers)
    if isinstance(found[0], frozenset):
        return frozenset[str]().union(*found)
    if (found[0] and isinstance(found[0][0], str)) or all(not each for each in found):
        return sorted(set(chain.from_iterable(found)))
    united: dict[object, list[Any]] = {}
    for each in chain.from_iterable(found):
        united.setdefault(_name(each), []).append(each)
    return [add_up(each) for each in united.values()]


def add_up(found: Sequence[Any]) -> Any:
    """Return the first of these, with the sums of what they count."""
    if len(found) == 1:
        return found[0]
    merged: dict[str, Any] = {}
    for field in _COUNTS:
        numbers = [getattr(each, field, None) for each in found]
        if known := [number for number in numbers if number is not None]:
            merged[field] = sum(known)
    if hasattr(found[0], "notices"):
        merged["notices"] = [notice for each in found for notice in each.notices]
    if hasattr(found[0], "is_done"):
        merged["is_done"] = all(each.is_done for each in found)
    return replace(found[0], **merged)


def _name(entry: Any) -> object:
    """Return what names an entry among those of its kind."""
    fields = ("app", "build", "name", "version", "rule", "scope")
    return tuple(str(getattr(entry, field, None)) for field in fields)


def merge_ids(found: Iterable[Sequence[UUID]], limit: int) -> list[UUID]:
    """Return the first ids of all."""
    return sorted(chain.from_iterable(found))[:limit]
