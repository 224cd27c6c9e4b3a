"""What is done to the runs of an environment, call by call. The base does nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol
from uuid import UUID

from holdfast.store.memory import MemoryStore
from holdfast.types import Delivered, Event
from holdfast.values.ids import counted_ids
from holdfast.worker.attempts import Execution


class LoggedStore(MemoryStore):
    """A store that a plan can look into at any moment."""

    def run_name(self, run_id: UUID) -> str:
        """Return the full name of a run's workflow, `?` for a run that is not here."""
        run = self._tables.runs.get(run_id)
        return "?" if run is None else run.new.name

    def logs(self) -> dict[UUID, list[Event]]:
        """Return the logs of all runs, in the order of their starts."""
        return {run_id: self._tables.read(run_id) for run_id in self._tables.runs}

    def held(self) -> list[tuple[UUID, str, str]]:
        """Return each activity and step of a flow that no worker could begin: its run, and why."""
        return [
            (task.run_id, f"{task.kind} {task.key}", task.stuck)
            for task in self._tables.tasks.values()
            if task.key and task.worker is None and task.stuck is not None
        ]

    async def resume_runs(self, run_ids: Sequence[UUID], *, by: str | None = None) -> Delivered:
        """Resume runs, and tell all workers: the one that has a paused run may have been killed."""
        resumed = await super().resume_runs(run_ids, by=by)
        self.wake_all()
        return resumed

    def expire(self, workers: Collection[str]) -> None:
        """End the visibility of the messages that consumers of these workers hold."""
        with self._lock:
            now = self.time()
            for row in self._tables.queues.rows.values():
                for delivery in row.deliveries.values():
                    if delivery.consumer in workers:
                        delivery.visible_at = now

    def wake_all(self) -> None:
        """Tell all listeners that they may have missed wake-ups: a worker died with them."""
        with self._lock:
            for listener in self._listeners:
                listener.call("")


class Plan:
    """What an environment does to its runs: it kills workers, or draws the order of things."""

    seed = 0
    """Of the random numbers of a try."""
    draw: Callable[[], float] | None = None
    """Draws the order of what is ready; None: it is as it comes."""

    async def pause(self) -> None:
        """Wait before and after each call of the store, and each attempt."""

    def begun(self, execution: Execution[Any]) -> None:
        """Take note of an attempt of a step or an activity that begins."""

    def keep(self, store: LoggedStore, name: str, parts: Sequence[Any]) -> Sequence[Any] | None:
        """Return what a worker still records of `parts` before it is killed; None: it lives on."""
        return None

    def sent(self, name: str) -> bool:
        """Return True if the workers are killed after this call of a client."""
        return False

    def killed(self, store: LoggedStore) -> None:
        """Take note of what is recorded when the workers are killed."""

    def finish(self, store: LoggedStore) -> str | None:
        """Compare what has come of it, at the end of a test; return what is wrong."""
        return None


class Tries(Protocol):
    """The tries of a test, each with a plan of its own."""

    name: str
    """That of the mark."""

    def plans(self) -> Iterator[Plan]:
        """Yield the plan of each try. The one before has passed."""
        ...

    def describe(self, plan: Plan) -> str:
        """Return what was done in a try that has failed, and how it is repeated."""
        ...

    def report(self) -> str:
        """Return what was done in all tries."""
        ...


@contextmanager
def same_each_time(seed: int = 0) -> Generator[None]:
    """Let a try draw the same ids, and the same random numbers, each time that it is made."""
    state = random.getstate()
    random.seed(seed)
    try:
        with counted_ids():
            yield
    finally:
        random.setstate(state)


def whole(name: str, value: object, least: int) -> int:
    """Return a whole number. Raises ValueError for anything else."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(
            f"{name} must be a whole number from {least} on, such as {name}=30, not {value!r}"
        )
    return value
