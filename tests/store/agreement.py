"""Two stores that are asked the same: the plumbing of the state machine, and what must hold."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ClassVar, TypeAlias
from uuid import UUID

import msgspec
from clocks import PostgresClock, ThoroughStore, recent_events
from drawn import HANDLERS, QUEUES
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, run_state_machine_as_test

from holdfast.errors import FlowInUse, HoldfastError, InvalidInput, RunExists, UnknownFlow
from holdfast.store.memory import MemoryStore
from holdfast.store.memory.tables import Tables
from holdfast.store.port import Store
from holdfast.types import ClaimedTask, Event, Notice, RunFilter, TurnCommit, WorkerInfo

TERMINAL = {
    "WorkflowCompleted",
    "WorkflowFailed",
    "WorkflowCanceled",
    "WorkflowTimedOut",
    "WorkflowTerminated",
    "WorkflowContinuedAsNew",
}

Held: TypeAlias = tuple[str, ClaimedTask]
Call: TypeAlias = tuple[str, UUID, list[TurnCommit]]


class TwoStores:
    """Asks the model and the other store the same, and compares."""

    loop: ClassVar[asyncio.Runner]
    other: ClassVar[Store]
    clock: ClassVar[PostgresClock]

    def __init__(self) -> None:
        super().__init__()
        self.model = MemoryStore()
        self.began_at = self.model.time()
        self.ids: list[UUID] = []
        self.held: list[Held] = []  # every lease that ever was, stale ones too
        self.calls: list[Call] = []
        self.lease_numbers: dict[UUID, int] = {}
        self.wait(self.clock.reset(self.began_at))

    @property
    def model_tables(self) -> Tables:
        """Return what the model knows."""
        return self.model._tables

    def info(self, worker: str) -> WorkerInfo:
        """Describe a worker."""
        return WorkerInfo(
            worker_id=worker,
            hostname="host",
            pid=1,
            queues=QUEUES,
            handlers=HANDLERS[:2],
            concurrency=10,
            holdfast_version="0",
        )

    def new_id(self) -> UUID:
        """Return the id of the next run, which may come to nothing."""
        self.ids.append(UUID(int=len(self.ids) + 1))
        return self.ids[-1]

    def parents(self, run_id: UUID) -> tuple[UUID, ...]:
        """Return the run that is told of a run's end, if there is one."""
        parent = self.model_tables.runs[run_id].parent
        return () if parent is None else (parent.run_id,)

    def wait(self, work: Awaitable[Any]) -> Any:
        """Run a coroutine to its end."""

        async def run() -> Any:
            return await work

        # Not by the runner's `run`, which writes its task as text, to look for a signal's handler.
        return self.loop.get_loop().run_until_complete(run())

    def both(self, ask: Callable[[Store], Coroutine[Any, Any, Any]]) -> Any:
        """Ask both stores; return the model's answer, which is the other's.

        Where the model refuses what is asked, the other has to refuse it with the same error.
        """

        async def answer(store: Store) -> Any:
            try:
                return await ask(store)
            except (InvalidInput, RunExists, UnknownFlow, FlowInUse) as refusal:
                return refusal

        async def answers() -> tuple[Any, Any]:
            return await answer(self.model), await answer(self.other)

        expected, found = self.wait(answers())
        if isinstance(expected, HoldfastError):
            assert type(found) is type(expected), f"the store says {found!r}, not {expected!r}"
            raise expected
        if not alike(found, expected):
            raise AssertionError("\n".join(differences(plain(found), plain(expected))))
        return expected

    def move(self, seconds: float) -> None:
        """Move the time of both stores."""
        self.model.advance(seconds)
        self.wait(self.clock.advance_to(self.model.time()))

    def do(self, change: Callable[[Store], Coroutine[Any, Any, Any]]) -> Any:
        """Change both stores, at a moment of the change's own."""
        self.move(0.000_001)
        return self.both(change)

    def chosen(self, numbers: list[int]) -> list[UUID]:
        """Return the runs picked, the newest being 0; one may stand there twice."""
        return [self.ids[-1 - number % len(self.ids)] for number in numbers]

    def leases(self, numbers: list[int]) -> list[Held]:
        """Return the leases picked, one for a run; 6 and 7 may be stale, the others stand."""
        runs = self.wait(self.model.get_runs(self.ids))
        waits = [(runs[task.run_id].wait, task) for _, task in self.held]
        standing = [
            held
            for held, (wait, task) in zip(self.held, waits, strict=True)
            if wait is not None and wait.worker is not None and wait.lease_no == task.lease_no
        ]
        sources = [standing if standing and number < 6 else self.held for number in numbers]
        pairs = zip(sources, numbers, strict=True)
        picked = [source[-1 - number % len(source)] for source, number in pairs]
        return list({task.run_id: (worker, task) for worker, task in picked}.values())

    def some_are_equally_old(self) -> bool:
        """Return True if two tasks have no fixed order."""
        runs = self.wait(self.model.get_runs(self.ids)).values()
        places = [(run.priority, run.wait.visible_at) for run in runs if run.wait is not None]
        return len(set(places)) < len(places)

    @invariant()
    def every_run_and_every_log_is_the_same(self) -> None:
        """Compare all runs and events, and check what must always hold of them."""

        async def everything(store: Store) -> Any:
            runs = await store.get_runs(self.ids)
            logs = await store.read_events([(run_id, 0) for run_id in self.ids])
            entries = await recent_events(store, since=0, limit=100_000)
            return runs, logs, sorted((entry.run_id, entry.idx) for entry in entries)

        runs, logs, places = self.both(everything)
        assert places == [(id_, idx) for id_ in self.ids for idx in range(len(logs[id_]))]
        for run_id, run in runs.items():
            types = [event.type for event in logs[run_id]]
            assert TERMINAL.isdisjoint(types[:-1])
            assert (types[-1] in TERMINAL) == (run.status != "running") == (run.wait is None)
            if run.wait is not None:
                assert run.wait.lease_no >= self.lease_numbers.get(run_id, 0)
                self.lease_numbers[run_id] = run.wait.lease_no


class Agreement(TwoStores, RuleBasedStateMachine):
    """A state machine whose steps hypothesis draws."""


def alike(found: Any, expected: Any) -> bool:
    """Return True if two answers are the same in what the contract promises.

    Most parts are equal as they are, and only others are reduced.
    """
    if found == expected:
        return True
    match found, expected:
        case dict(), dict():
            same = found.keys() == expected.keys()
            return same and all(alike(found[key], each) for key, each in expected.items())
        case [Notice(), *_], _:
            return bool(plain(found) == plain(expected))
        case [*_], [*_] if len(found) == len(expected):
            return all(map(alike, found, expected))
        case _:
            return bool(plain(found) == plain(expected))


def plain(answer: Any) -> Any:
    """Reduce an answer to what the contract promises: no order among notices, JSON by value."""
    match answer:
        case Event(type=kind, key=key, details=details, at=at):
            return kind, key, json.loads(details or "null"), at
        case dict():
            return {key: plain(value) for key, value in answer.items()}
        case [Notice(), *_]:
            return sorted((notice.topic, notice.payload) for notice in answer)
        case list() | tuple():
            return [plain(item) for item in answer]
        case _ if hasattr(answer, "__struct_fields__"):
            fields = {name: plain(getattr(answer, name)) for name in answer.__struct_fields__}
            json_fields = {"error", "heartbeat"} & fields.keys()
            return fields | {name: json.loads(fields[name] or "null") for name in json_fields}
        case _:
            return answer


def differences(found: Any, expected: Any, place: str = "") -> Iterator[str]:
    """Say where two plain answers differ."""
    match found, expected:
        case dict(), dict():
            for key in {**found, **expected}:
                yield from differences(found.get(key), expected.get(key), f"{place}/{key}")
        case [*_], [*_] if len(found) == len(expected):
            for idx, (one, other) in enumerate(zip(found, expected, strict=True)):
                yield from differences(one, other, f"{place}/{idx}")
        case _ if found != expected:
            yield f"{place}: the store says {found}, the model {expected}"
        case _:
            pass


async def all_pages(store: Store, where: RunFilter) -> list[Any]:
    """List runs to the last page."""
    page = await store.list_runs(where)
    found = list(page.runs)
    while page.cursor is not None:
        page = await store.list_runs(msgspec.structs.replace(where, cursor=page.cursor))
        found += page.runs
    return found


async def decoded_values(store: Store, run_ids: list[UUID]) -> dict[UUID, Any]:
    """Return what runs have set; those that have set nothing may be left out."""
    values = await store.get_values(run_ids)
    return {
        run_id: {name: json.loads(text) for name, text in found.items()}
        for run_id, found in values.items()
        if found
    }


async def sorted_unserved(store: Store) -> list[tuple[str, str, int]]:
    """Return what nobody serves; its order is open."""
    return sorted(await store.unserved())


def run_machine(machine: type[Agreement], url: str, *, examples: int, steps: int) -> None:
    """Run a state machine against the store on a database.

    With HOLDFAST_TEST_MORE=10 in the environment, ten times as many examples are drawn.
    """
    limits = settings(
        max_examples=examples * int(os.environ.get("HOLDFAST_TEST_MORE", "1")),
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    with two_stores(url):
        run_state_machine_as_test(machine, settings=limits)


@contextmanager
def two_stores(url: str) -> Generator[None, None, None]:
    """Let machines ask the store on a database."""
    with asyncio.Runner() as runner:
        stage = postgres(url)
        TwoStores.loop = runner
        TwoStores.other, TwoStores.clock = runner.run(stage.__aenter__())
        try:
            yield
        finally:
            runner.run(stage.__aexit__(None, None, None))


@asynccontextmanager
async def postgres(url: str) -> AsyncGenerator[tuple[Store, PostgresClock], None]:
    """Provide the other store and its clock; nothing here need survive a crash."""
    async with PostgresClock.install(url) as clock:
        store = ThoroughStore(f"{url}&synchronous_commit=off", connections=1)
        await store.open()
        try:
            yield store, clock
        finally:
            await store.close()
