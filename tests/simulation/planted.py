"""Faults that the simulation must find: each is a small change of the engine or of the store.

`FOUND_BY` has for each a seed that finds it, so that a test does not search for long; the command
with `--planted` searches.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, TypeAlias
from unittest import mock

import msgspec

from holdfast.runtime.code import continuing
from holdfast.runtime.code.steps import Executions
from holdfast.runtime.code.timers import Timers
from holdfast.runtime.turn import outcome
from holdfast.store.memory import activities, choosing, claims, commits, ends, messages, signals
from holdfast.store.memory.flows import ends as flow_ends
from holdfast.store.memory.tables import Tables
from holdfast.store.memory.workers import MemoryWorkers
from holdfast.types import ClaimedTask, Refusal
from holdfast.worker.claimer import Claimer
from holdfast.worker.step_tasks import StepTasks

Changes: TypeAlias = list[tuple[Any, str, Any]]
"""What is replaced: an object, the name of an attribute, the value in its place."""


def _claims_take_leases() -> Changes:
    def takes(claim: claims.Claim, task: Any, now: int) -> bool:
        return claim.serves(task) and (task.worker is not None or claim.due_at(task) <= now)

    return [(claims.Claim, "takes", takes)]


def _commit_ignores_the_lease() -> Changes:
    real = commits._refusal

    def refusal(tables: Tables, worker_id: str, turn: Any) -> Refusal | None:
        task = tables.tasks.get((turn.run_id, ""))
        if task is None:
            return real(tables, worker_id, turn)
        lease = msgspec.structs.replace(turn, lease_no=task.lease_no)
        return real(tables, task.worker or "", lease)

    # Alone it does nothing: the entry that a take-over writes stands where the commit is to be.
    append = Tables.append

    def append_others(tables: Tables, run_id: Any, event: Any, *token: Any) -> None:
        if event.type != "WorkerLost":
            append(tables, run_id, event, *token)

    return [(commits, "_refusal", refusal), (Tables, "append", append_others)]


def _signal_wakes_nobody() -> Changes:
    return [(Tables, "wake_for", lambda *_: [])]


def _ack_does_not_check() -> Changes:
    real = messages._ack
    seen: dict[Any, list[int]] = {}
    deliver = messages._deliver

    def delivers(row: Any, *args: Any) -> Any:
        made = deliver(row, *args)
        seen[made.delivery_id] = [each.message_id for each in made.messages]
        return made

    def ack(row: Any, delivery_id: Any, place: int | None, now: int) -> bool:
        if real(row, delivery_id, place, now):
            return True
        return bool([row.waiting.pop(each, None) for each in seen.get(delivery_id, ())])

    return [(messages, "_ack", ack), (messages, "_deliver", delivers)]


def _deduplication_is_forgotten() -> Changes:
    real = messages.send_message

    def send(queues: Any, row: Any, new: Any, now: int) -> int:
        row.known.clear()
        return real(queues, row, new, now)

    return [(messages, "send_message", send)]


def _timer_fires_twice() -> Changes:
    real = Timers.deliver
    again: set[tuple[Any, str]] = set()

    def deliver(timers: Timers, event: Any) -> None:
        timer, place = timers.live.get(event.key), (timers._run.info.run_id, event.key)
        real(timers, event)
        if timer is not None and place not in again:
            again.add(place)
            timers.live[timer.key] = timer
            timers._new.append(timer)

    return [(Timers, "deliver", deliver)]


def _place_leaks_with_its_worker() -> Changes:
    lost: list[Any] = []
    record, holders = claims._record_lost_workers, choosing.holders

    def record_lost(tables: Tables, now: int, tasks: Sequence[Any]) -> None:
        lost.extend(task for task in tasks if task.worker is not None)
        record(tables, now, tasks)

    def count(tables: Tables, row: Any, value: str | None = None) -> list[Any]:
        leaked = [task for task in lost if choosing.concerns(row.rule, task)]
        return [*holders(tables, row, value), *leaked]

    return [(claims, "_record_lost_workers", record_lost), (choosing, "holders", count)]


def _element_counts_twice() -> Changes:
    real = flow_ends._record_outputs

    def record(progress: Any, completed: Any) -> Any:
        pairs = list(completed)
        for task, _ in pairs:
            slug, _, index = task.key.partition(":")
            if index and task.lease_no > 1:
                row = progress.tables.steps[task.run_id][slug]
                row.remaining_tasks = max(1, row.remaining_tasks - 1)
        return real(progress, pairs)

    return [(flow_ends, "_record_outputs", record)]


def _continuing_drops_signals() -> Changes:
    real = continuing.continuation

    def continuation(*args: Any) -> Any:
        return msgspec.structs.replace(real(*args), signals=[])

    return [(outcome, "continuation", continuation)]


def _leases_never_expire() -> Changes:
    async def reap(*_: Any, **__: Any) -> Any:
        return [], []

    def takes(claim: claims.Claim, task: Any, now: int) -> bool:
        return task.worker is None and claim.serves(task) and claim.due_at(task) <= now

    return [(MemoryWorkers, "reap_workers", reap), (claims.Claim, "takes", takes)]


def _repeated_commit_is_recorded_again() -> Changes:
    real = commits._refusal

    def refusal(tables: Tables, worker_id: str, turn: Any) -> Refusal | None:
        length = len(tables.logs.get(turn.run_id, ()))
        moved = msgspec.structs.replace(turn, expected=length, last_at=0)
        return real(tables, worker_id, moved)

    return [(commits, "_is_written", lambda *_: False), (commits, "_refusal", refusal)]


def _stale_end_is_taken() -> Changes:
    return [(activities, "_holds", lambda task, worker_id, end: task.kind == "activity")]


def _leased_parent_is_not_told() -> Changes:
    real = ends.tell_parents

    def tell(tables: Tables, now: int, ended: Any) -> Any:
        def is_told(run_id: Any) -> bool:
            parent = tables.runs[run_id].parent
            turn = None if parent is None else tables.tasks.get((parent.run_id, ""))
            return turn is None or turn.worker is None

        return real(tables, now, [each for each in ended if is_told(each)])

    return [(commits, "tell_parents", tell), (ends, "tell_parents", tell)]


def _steps_start_too_early() -> Changes:
    real = Executions.start

    def start(executions: Executions, steps: Any, durable: int) -> Any:
        return real(executions, steps, 1 << 30)

    return [(Executions, "start", start)]


def _nobody_polls() -> Changes:
    async def wait(claimer: Claimer) -> None:
        claimer._pause = math.inf
        while not claimer._asked:
            claimer._sleep = asyncio.get_running_loop().create_future()
            await claimer._sleep
            claimer._sleep = None

    return [(Claimer, "_wait", wait)]


def _signal_id_is_forgotten() -> Changes:
    return [(signals, "has_signal", lambda *_: False)]


def _shape_is_not_compared() -> Changes:
    real = StepTasks._start

    def start(tasks: StepTasks, task: ClaimedTask) -> None:
        real(tasks, msgspec.structs.replace(task, shape_hash=None))

    return [(StepTasks, "_start", start)]


PLANTED: Final[dict[str, Callable[[], Changes]]] = {
    "a claim takes leases that have not expired": _claims_take_leases,
    "neither its lease nor a take-over stops a commit": _commit_ignores_the_lease,
    "a signal wakes no run": _signal_wakes_nobody,
    "an acknowledgement does not check its delivery": _ack_does_not_check,
    "a deduplication id is forgotten": _deduplication_is_forgotten,
    "a timer fires twice": _timer_fires_twice,
    "the place of a limit leaks when its worker dies": _place_leaks_with_its_worker,
    "an element of a map counts twice": _element_counts_twice,
    "continuing as new drops signals": _continuing_drops_signals,
    "a lease never expires": _leases_never_expire,
    "a repeated commit is recorded again": _repeated_commit_is_recorded_again,
    "the end of a stale attempt is taken": _stale_end_is_taken,
    "a parent at work is not told of an end": _leased_parent_is_not_told,
    "no worker polls": _nobody_polls,
    "a signal id is forgotten": _signal_id_is_forgotten,
    "code of another shape does a step": _shape_is_not_compared,
}

FOUND_BY: Final[dict[str, tuple[int, str]]] = {
    "a claim takes leases that have not expired": (0, "two leases"),
    "neither its lease nor a take-over stops a commit": (1842, "commit without a lease"),
    "a signal wakes no run": (0, "left waiting"),
    "an acknowledgement does not check its delivery": (34, "acknowledged twice"),
    "a deduplication id is forgotten": (2, "a message for each deduplication id"),
    "a timer fires twice": (264, "recorded twice"),
    "the place of a limit leaks when its worker dies": (28, "left waiting"),
    "an element of a map counts twice": (54, "each element once, in its place"),
    "continuing as new drops signals": (2, "left waiting"),
    "a lease never expires": (3, "left waiting"),
    "a repeated commit is recorded again": (67, "left waiting"),
    "the end of a stale attempt is taken": (824, "end without a lease"),
    "a parent at work is not told of an end": (2, "left waiting"),
    "no worker polls": (1, "left waiting"),
    "a signal id is forgotten": (14, "a scene failed with RunEnded"),
    "code of another shape does a step": (304, "one release has done all of a run"),
}
"""A seed that finds each, and the rule that it breaks."""


@contextmanager
def planted(name: str) -> Generator[None]:
    """Have a fault in the block."""
    with ExitStack() as changed:
        for change in PLANTED[name]():
            changed.enter_context(mock.patch.object(*change))
        yield
