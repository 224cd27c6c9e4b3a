"""Crashes everywhere: a test runs again and again, and its workers are killed elsewhere each time.

First it runs twice without a kill. What differs then is not looked at later. A point at which
workers are killed is a number of entries that a call has recorded: none, when the effects that they
tell of have happened and are lost, or some, or all, when only the answer is lost. Commits are not
cut in two.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, cast
from uuid import UUID

import msgspec

from holdfast import events
from holdfast.codec import encode
from holdfast.runtime.code.values import RAISED, handlers_that_raised
from holdfast.testing.plan import LoggedStore, Plan, whole
from holdfast.types import ActivityEnd, Event, StepTaskEnd, TurnCommit
from holdfast.worker.attempts import Execution

MOST: Final = 100  # points, unless a test says otherwise

Place: TypeAlias = tuple[UUID, str]
Part: TypeAlias = TurnCommit | ActivityEnd | StepTaskEnd
Entry: TypeAlias = tuple[UUID, str, str | None, int]
"""A run, a type, a key, and the how many-th entry of these in the run's log."""

# What is recorded of an attempt, which is not made again then.
_RESULTS: Final = (
    events.STEP_ENDS | events.FLOW_STEP_ENDS | {events.ACTIVITY_COMPLETED, events.ACTIVITY_FAILED}
)
# What others write, and what a kill may change: when something was waited for, how often tried.
_NOT_COMPARED: Final = (
    (events.EXTERNAL - events.COMMAND_ENDS)
    | {events.YIELDED, events.STEP_RETRY, events.FLOW_STEP_RETRY}
    | {events.VALUE_RECORDED, events.VALUE_SET, events.ATTRIBUTES_SET}  # parallel code sets others
    | events.TIMERS
    | events.UPDATE_REPLIES
)
_WITHDRAWALS: Final = events.with_role("withdrawal")
_FIELDS_NOT_COMPARED: Final = frozenset(
    {"started_at", "attempt", "seen", "python", "caught", "streams", "args", "decision_id"}
)
_AGAIN: Final = (
    "What has run and is not recorded runs again: let a second time change nothing, by the "
    "idempotency_key of `current_step()`"
)


_number: Final = re.compile(r"[#:]\d+")


class Point(NamedTuple):
    """Where workers are killed: in which call, and how many of its entries are recorded first.

    `what` is the entry that is lost if none is recorded, else the last one that is not.
    """

    call: int
    kept: int
    what: str

    def __str__(self) -> str:
        if self.kept == 0:
            return f"when {self.what} had happened, before it was recorded"
        return f"after {self.what}"


class CrashPlan(Plan):
    """Notes the points of a try, and kills the workers at one of them, if there is one."""

    def __init__(self, crashes: Crashes, point: Point | None = None) -> None:
        self._crashes, self.point = crashes, point
        self.points: list[Point] = []
        self.hit: Point | None = None  # the point as it was in this try
        self._calls = 0
        self._begun: set[Place] = set()  # attempts before the kill
        self._recorded: set[Place] = set()  # of them, which have ended before the kill
        self.begun_again: set[Place] = set()
        self._repeated: list[Place] = []  # although it was recorded

    def begun(self, execution: Execution[Any]) -> None:
        """Take note of an attempt: was it made, or even recorded, before the kill?"""
        run_id, key = (getattr(execution.context, name, None) for name in ("run_id", "key"))
        if run_id is None or key is None:
            return
        place = run_id, key
        if self.hit is None:
            self._begun.add(place)
        elif place in self._recorded:
            self._repeated.append(place)
        elif place in self._begun:  # with the step of a flow that it is an element of
            self.begun_again |= {place, (run_id, key.partition(":")[0])}

    def keep(self, store: LoggedStore, name: str, parts: Sequence[Part]) -> Sequence[Part] | None:
        """Note the points of a call, and return what is kept of it if one is the point."""
        self._calls += 1
        found = list(_points(store, self._calls, parts))
        self.points += found
        hit = self._find(found)
        kept = parts if hit is None else list(_first(parts, hit.kept))
        self._recorded |= {  # an element of a map has no entry of its own
            (each.run_id, each.key)
            for each in kept
            if not isinstance(each, TurnCommit) and each.error is None
        }
        return None if hit is None else kept

    def sent(self, name: str) -> bool:
        """Note a call of a client as a point; return True if it is the point."""
        self._calls += 1
        found = Point(self._calls, 1, f"the client's call of {name}")
        self.points.append(found)
        return self._find([found]) is not None

    def _find(self, found: Sequence[Point]) -> Point | None:
        if self.hit is None and (point := self.point) is not None:
            same = (each for each in found if (each.call, each.kept) == (point.call, point.kept))
            self.hit = next(same, None)
            return self.hit
        return None

    def killed(self, store: LoggedStore) -> None:
        """Remember what is recorded now."""
        self._recorded |= {
            (run_id, event.key)
            for run_id, log in store.logs().items()
            for event in log
            if event.key is not None and event.type in _RESULTS
        }

    def finish(self, store: LoggedStore) -> str | None:
        """Compare what the try has left with what the first one did; return a difference."""
        if self._repeated:
            run_id, key = self._repeated[0]
            return (
                f"{key} of run {run_id} ({store.run_name(run_id)}) was recorded when the workers "
                "were killed, and ran once more"
            )
        return self._crashes.compare(self, Record(store))


class Record:
    """What one try has left: the entries of its runs that are compared."""

    def __init__(self, store: LoggedStore) -> None:
        self.names = {run_id: store.run_name(run_id) for run_id in store.logs()}
        self.entries: dict[Entry, dict[str, Any]] = {}
        self._places: dict[Entry, int] = {}
        self.cancelled: set[UUID | None] = set()  # by their parents: how far they came is chance
        for run_id, log in store.logs().items():
            seen = Counter[tuple[str, str | None]]()
            # Whether the end of a call that was taken back comes before that of the run is chance.
            unawaited = {each.key for each in log if each.type in _WITHDRAWALS}
            for index, event in enumerate(log):
                if event.type == events.CHILD_CANCEL:
                    self.cancelled.add(events.read_target(event.details or "").child_run_id)
                is_late = event.type in events.COMMAND_ENDS and event.key in unawaited
                if event.type not in _NOT_COMPARED and not is_late:
                    seen[event.type, event.key] += 1
                    entry = run_id, event.type, event.key, seen[event.type, event.key]
                    self.entries[entry], self._places[entry] = _compared(event), index

    def describe(self, entry: Entry) -> str:
        """Return an entry in words."""
        run_id, kind, key, _ = entry
        what = f"{kind} {key or ''}".rstrip()
        return f"entry {self._places[entry]} of run {run_id} ({self.names[run_id]}), {what}"


def _compared(event: Event) -> dict[str, Any]:
    try:
        details: Any = msgspec.json.decode(event.details or "{}")
    except msgspec.DecodeError:
        details = event.details  # encoded by a codec
    if event.type in events.TOLD_BY_RUN or not isinstance(details, dict):
        return {"value": details}
    fields = _kept(cast("dict[str, Any]", details))
    if isinstance(again := fields.get("again"), dict):
        fields["again"] = _kept(cast("dict[str, Any]", again))
    return fields


def _kept(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in fields.items() if name not in _FIELDS_NOT_COMPARED}


class Crashes:
    """The tries of `crash_everywhere`: two without a kill, then one for each point."""

    name = "crash_everywhere"

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._first: Record | None = None
        # What differs also without a kill: details of entries, and runs that make other calls.
        self._changing: set[Entry] = set()
        self._drawn: set[UUID] = set()
        self._found = 0  # points
        self._tried: list[CrashPlan] = []

    def plans(self) -> Iterator[CrashPlan]:
        """Yield the plan of each try."""
        yield (first := CrashPlan(self))
        yield CrashPlan(self)
        self._found = len(first.points)
        for point in _spread(first.points, self._most):
            self._tried.append(plan := CrashPlan(self, point))
            yield plan

    def compare(self, plan: CrashPlan, found: Record) -> str | None:
        """Compare what a try has left with what the first one did; return a difference."""
        if not found.names:
            return (
                "the test starts no run in the fixture `environment`: there is nothing to kill. "
                "Start one with `client.start(…)` or `environment.run(…)`, or take the mark "
                f"`{self.name}` away"
            )
        first = self._first
        if first is None:
            self._first = found
            return None
        if plan.point is None:
            return self._note_changing(first, found)
        difference = self._difference(plan, first, found)
        return difference and f"the runs end otherwise than without a kill: {difference}"

    def _note_changing(self, first: Record, found: Record) -> str | None:
        """Note what differs without a kill. Return how the runs differ that the test starts."""
        if first.names != found.names:
            same = sorted(first.names.values()) == sorted(found.names.values())
            runs = (
                ", ".join(sorted(f"{name} {key}" if same else name for key, name in each))
                for each in (first.names.items(), found.names.items())
            )
            return (
                f"two tries without a kill start other runs: {' and then '.join(runs)}. The test "
                "must do the same each time: let it draw nothing, and share nothing with the last"
            )
        once = first.entries.keys() ^ found.entries.keys()
        self._drawn = {run_id for run_id, kind, _, _ in once if kind not in events.TERMINAL}
        both = first.entries.keys() & found.entries.keys()
        self._changing = {each for each in both if first.entries[each] != found.entries[each]}
        return None

    def _difference(self, plan: CrashPlan, first: Record, found: Record) -> str | None:
        """Return the first difference that counts, None without one."""
        cancelled = first.cancelled & found.cancelled
        for one, other, what in ((first, found, "is missing"), (found, first, "is new")):
            for entry in one.entries:
                counts = entry[1] in events.TERMINAL or entry[0] not in self._drawn
                if counts and entry not in other.entries and entry[0] not in cancelled:
                    return f"{one.describe(entry)}, {what}"
        for entry, old in first.entries.items():
            run_id, _, key, _ = entry
            if run_id in cancelled or entry in self._changing or (run_id, key) in plan.begun_again:
                continue  # asked again, the world may answer otherwise
            new = found.entries.get(entry, old)
            for name in [*old, *new]:
                if old.get(name) != new.get(name):
                    was, now = (encode(each.get(name)) for each in (old, new))
                    return f"in {found.describe(entry)}, {name} is {now}, and was {was}"
        return None

    def describe(self, plan: Plan) -> str:
        """Return at which point the workers were killed."""
        assert isinstance(plan, CrashPlan)
        if plan.point is None:
            return "No worker was killed yet: the test fails without."
        number = len(self._tried)
        if plan.hit is None:
            return f"Point {number} was not reached: {plan.point}."
        lost = f" {_AGAIN}." if plan.begun_again or plan.hit.kept == 0 else ""
        return f"The workers were killed {plan.hit} (point {number} of {self._found}).{lost}"

    def report(self) -> str:
        """Return all points."""
        head = f"killed at {len(self._tried)} of {self._found} points"
        return "\n".join([head, *(f"  {plan.hit or plan.point}" for plan in self._tried)])


def crashes(*, most: object = MOST) -> Crashes:
    """Return the tries of a mark. Raises ValueError for a number that cannot be one."""
    return Crashes(whole("most", most, 1))


def _points(store: LoggedStore, call: int, parts: Sequence[Part]) -> Iterator[Point]:
    """Yield the points of a call that records something."""
    ends: list[tuple[int, str]] = []  # after how many entries, and which is the last of them
    results: list[str] = []
    length = 0
    for part in parts:
        name = store.run_name(part.run_id)
        if isinstance(part, TurnCommit):
            entries = [f"{name}: {each.type} {each.key or ''}".rstrip() for each in part.events]
            types = [each.type for each in part.events]
            results += [
                what for what, kind in zip(entries, types, strict=True) if kind in events.STEPS
            ]
            ends += [(length + count, entries[count - 1]) for count in _cuts(types)]
            length += len(entries)
        else:
            results.append(f"{name}: the end of {part.key}")
            length += 1
            ends.append((length, results[-1]))
    if results:  # they were made, and are lost
        yield Point(call, 0, results[0])
    for kept, what in ends:
        yield Point(call, kept, what)


def _cuts(types: Sequence[str]) -> Iterator[int]:
    """Yield after how many entries a worker's commit may end: it is never cut elsewhere.

    What the code does in answer to an entry is in the same commit. If another entry follows that
    the code is fed, a slower worker would have made two commits.
    """
    for count, kind in enumerate(types):
        if count and kind in events.DELIVERED:
            yield count
    yield len(types)


def _first(parts: Sequence[Part], kept: int) -> Iterator[Part]:
    """Yield parts with so many entries together; of the last one perhaps only a shorter commit."""
    for part in parts:
        length = len(part.events) if isinstance(part, TurnCommit) else 1
        if kept <= 0:
            return
        if isinstance(part, TurnCommit) and length > kept:
            yield _begin(part, kept)
        else:
            yield part
        kept -= length


def _begin(commit: TurnCommit, kept: int) -> TurnCommit:
    """Return the first entries of a commit. As when a run divides it, they say what has raised."""
    begun, later = commit.events[:kept], commit.events[kept:]
    keys = [*handlers_that_raised(later)]
    if any(each.type == events.FAILED for each in later):
        keys.append(RAISED)
    true = events.write_value("true")
    said = [Event(events.VALUE_RECORDED, key, true, begun[0].at) for key in keys]
    if commit.after_others:
        said = [events.mark_after_others(each, commit.expected) for each in said]
    return msgspec.structs.replace(commit, events=[*said, *begun], then=None)


def _spread(points: Sequence[Point], most: int) -> Sequence[Point]:
    """Return at most so many of the points, in their order.

    Each kind of entry has one, before each call by name has; the others are spread evenly.
    """
    if len(points) <= most:
        return points
    chosen: set[int] = set()
    for kind in (_kind, _call):
        first: dict[str, int] = {}
        for place, point in enumerate(points):
            first.setdefault(kind(point), place)
        chosen |= set(_evenly(sorted({*first.values()} - chosen), most - len(chosen)))
    rest = [place for place in range(len(points)) if place not in chosen]
    chosen |= set(_evenly(rest, most - len(chosen)))
    return [points[place] for place in sorted(chosen)]


def _kind(point: Point) -> str:
    """Return of which type the entry is, and if it is lost."""
    return f"{point.kept == 0} {' '.join(point.what.split(' ')[:2])}"


def _call(point: Point) -> str:
    """Return the kind with the name in the key, without numbers and where it is called."""
    return f"{_kind(point)} {_number.sub('', point.what.rpartition('/')[2])}"


def _evenly(places: Sequence[int], most: int) -> Sequence[int]:
    """Return at most so many places, from the first to the last."""
    if len(places) <= most:
        return places
    return [places[place * (len(places) - 1) // max(most - 1, 1)] for place in range(most)]
