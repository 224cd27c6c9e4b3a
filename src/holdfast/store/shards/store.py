"""The store over all shards: a call goes where its run is, and lists are merged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

from holdfast.errors import ConfigurationError, DatabaseUnavailable
from holdfast.objects import Objects
from holdfast.store.port import Store
from holdfast.store.port.run_lines import read_line
from holdfast.store.shards.listening import Listening, Stop
from holdfast.store.shards.lists import Lists
from holdfast.store.shards.members import Members, answered, gather
from holdfast.store.shards.places import Places
from holdfast.store.shards.router import Router, ShardNotice, in_order, merged, notices_of, run_of
from holdfast.store.shards.settings import Settings
from holdfast.store.shards.starting import Starting
from holdfast.types import (
    ActivitiesEnded,
    ActivityEnd,
    ActivityOutcome,
    ClippedEvent,
    Event,
    NewRun,
    Notice,
    Restoring,
    RunRecord,
    ShardState,
    StartedRun,
    StreamPart,
    StreamRead,
)

NO_OBJECTS: Final = (
    "an app with large payloads outside of the database cannot have several databases yet: leave "
    "one of the two out"
)


class ShardedStore(Lists, Settings):
    """Makes the calls of the port over several databases. For clients: a worker has one of them."""

    def __init__(self, stores: Sequence[Store]) -> None:
        self.members = Members(stores)
        places = Places(self.members)
        self._starting = Starting(self.members, places)
        super().__init__(Router(self.members, places))

    @property
    def schema(self) -> str | None:
        """The schema, which is the same in all databases."""
        return self.members.named[0].store.schema

    @property
    def reads(self) -> Store:
        """This store: lists are read where the runs are."""
        return cast("Store", self)

    async def fresh_reads(self) -> Store:
        return cast("Store", self)

    async def check_reads(self) -> None:
        """Return None: there is no read database."""

    async def open(self) -> None:
        """Open all databases that answer; see `Members.open`."""
        await self.members.open()

    async def close(self) -> None:
        await self.members.close()

    async def shard_state(self) -> ShardState | None:
        """Return what the first shard that answers says."""
        states = (each.state for each in self.members.named)
        return next((state for state in states if state is not None), None)

    def read_hints(self, *_: object) -> None:
        """Return None: hints are for workers."""

    def hint_use(self) -> None:
        """Return None: hints are for workers."""

    def objects_at(self, url: str) -> Objects:
        return self.members.named[0].store.objects_at(url)

    async def own_payloads(self, *_: object) -> list[UUID]:
        """Refuse to write large payloads: one database must know all who use them.

        Raises ConfigurationError.
        """
        raise ConfigurationError(NO_OBJECTS)

    # Starts

    async def start_runs(self, runs: Sequence[NewRun]) -> tuple[list[StartedRun], list[Notice]]:
        """Start runs; see `StartStore.start_runs`. Each shard starts its own or none of them."""
        return await self._starting.start("start_runs", runs)

    async def start_flows(self, runs: Sequence[NewRun]) -> tuple[list[StartedRun], list[Notice]]:
        return await self._starting.start("start_flows", runs)

    # Waiting, and being told

    async def notify(self, notices: Sequence[Notice]) -> None:
        """Send wake-ups in the shards that they are of, as far as these answer, else in all."""
        asked: dict[int, list[Notice]] = {}
        for each in notices:
            every = range(self.members.count)
            for number in [each.shard] if isinstance(each, ShardNotice) else every:
                asked.setdefault(number, []).append(each)
        await answered(
            {number: self.members.call(number, "notify", some) for number, some in asked.items()}
        )

    async def listen(self, topic: str, callback: Callable[[str], None]) -> Stop:
        """Listen in all shards; see `Listening`."""
        return await Listening(self.members, topic, callback).start()

    async def wait_for_end(self, topic: str, run_ids: Sequence[UUID]) -> dict[UUID, RunRecord]:
        """Register a topic for ends, in the shards that answer; see `ListenStore.wait_for_end`.

        Raises DatabaseUnavailable if none of them does.
        """
        asked = await self._router.most_apart(run_ids)
        calls = [self.members.call(n, "wait_for_end", topic, which) for n, which in asked.items()]
        # A lock that one of them met is for the caller, who asks for fewer runs then.
        found = await asyncio.gather(*calls, return_exceptions=True)
        errors = [each for each in found if isinstance(each, BaseException)]
        severe = [each for each in errors if not isinstance(each, DatabaseUnavailable)]
        if severe or (errors and len(errors) == len(found)):
            raise (severe or errors)[0]
        return merged([each for each in found if not isinstance(each, BaseException)])

    async def await_streams(self, streams: Sequence[tuple[UUID, str]], seconds: float) -> None:
        parts = await self._router.parts(streams, _first)
        await gather(
            self.members.call(number, "await_streams", [streams[at] for at in which], seconds)
            for number, which in parts.items()
        )

    # Several runs

    async def read_events(
        self, ranges: Sequence[tuple[UUID, int]], *, patience: int = 1
    ) -> dict[UUID, list[Event]]:
        parts = await self._router.parts(ranges, _first)
        found = await gather(
            self.members.call(
                number, "read_events", [ranges[at] for at in which], patience=patience
            )
            for number, which in parts.items()
        )
        return merged(found)

    async def read_tails(
        self, ranges: Sequence[tuple[UUID, int]], **limits: int
    ) -> list[list[ClippedEvent]]:
        """Return the next events of logs; see `QueryStore.read_tails`. Limits are of each shard."""
        return await self._router.aligned("read_tails", ranges, _first, **limits)

    async def read_streams(self, reads: Sequence[StreamRead], **limits: int) -> list[StreamPart]:
        """Return parts of streams; see `StreamStore.read_streams`. Limits are of each shard."""
        return await self._router.aligned("read_streams", reads, run_of, **limits)

    async def end_activities(
        self, worker_id: str | None, ends: Sequence[ActivityEnd]
    ) -> ActivitiesEnded:
        parts = await self._router.parts(ends, run_of)
        found: list[ActivitiesEnded] = await gather(
            self.members.call(number, "end_activities", worker_id, [ends[at] for at in which])
            for number, which in parts.items()
        )
        outcomes: list[ActivityOutcome] = in_order(parts, [each.outcomes for each in found])
        now = max((each.now for each in found), default=0)
        return ActivitiesEnded(now, outcomes, notices_of(parts, [each.notices for each in found]))

    async def restore_run(self, lines: Sequence[str], *, retention_seconds: float) -> Restoring:
        """Make an ended run of its lines, in the shard that has one with its id, or would have.

        See `ArchiveStore.restore_run`.
        """
        run = read_line(lines[0]).run if lines else None
        number = 0  # which refuses lines without a run
        if run is not None and not isinstance(run, UUID):
            [number] = await self._router.apart([run.run_id])
        answer: Restoring = await self.members.call(
            number, "restore_run", lines, retention_seconds=retention_seconds
        )
        return answer

    # All other calls

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return what makes a call as the tables of `routes` say."""
            if name.startswith("_"):
                raise AttributeError(name)
            return self._router.find(name)


def sharded(stores: Sequence[Store]) -> Store:
    """Return the store of clients over the shards of an engine, in the order of their numbers."""
    return cast("Store", ShardedStore(stores))


def shards_of(store: Store) -> Members | None:
    """Return the shards of a store, None for a database alone."""
    return store.members if isinstance(store, ShardedStore) else None


def _first(item: tuple[UUID, Any]) -> UUID:
    return item[0]
