"""The store on PostgreSQL with hints through Redis: these tell of work that any worker may take."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, Final
from uuid import UUID

from msgspec.structs import replace

from holdfast.errors import DatabaseError
from holdfast.store.port import ACTIVITIES_TOPIC, HINTED_TOPICS, STARTS_TOPIC, WORK_TOPIC
from holdfast.store.port.listening import HintReader
from holdfast.store.postgres import PostgresStore
from holdfast.store.redis.reading import Reader
from holdfast.store.redis.sending import ANSWER_SECONDS, FIELD, Sender
from holdfast.store.redis.server import RedisServer, close, trouble
from holdfast.types import (
    FlowFork,
    FlowForking,
    FlowRetry,
    Fork,
    Forking,
    HintCheck,
    HintUse,
    NewRun,
    Notice,
    Receipt,
    StartedRun,
)

_DIGITS: Final = 16
_MANY: Final = 50  # runs of a call in a queue; as _hint_topic in core/notify.sql
_STREAMS: Final = {STARTS_TOPIC: "wf", ACTIVITIES_TOPIC: "act"}


class RedisHintedStore(PostgresStore):
    """A `PostgresStore` that tells one worker of what any worker may take, through Redis.

    All other notices go through PostgreSQL, and these as well while Redis fails. Workers listen
    there too: for programs that do not know of Redis.
    """

    def __init__(self, redis_url: str, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        tell = self._database.tell
        if tell is not None:
            self._database.tell, self._database.tell_starts = f"{tell}:hints", f"{tell}:starts"
        self._redis_url = redis_url
        self._server = RedisServer(redis_url)
        self._sender = Sender(self._server)
        self._prefix: str | None = None

    async def open(self) -> None:
        """Connect, as `PostgresStore.open` does, and import the client of Redis.

        That takes up to a second: too long for a hint, and a process must not fork meanwhile.
        """
        await asyncio.gather(super().open(), asyncio.to_thread(_import_client))

    async def close(self) -> None:
        """Close every connection."""
        try:
            await self._sender.close()
        finally:
            await super().close()

    async def start_runs(self, runs: Sequence[NewRun]) -> tuple[list[StartedRun], list[Notice]]:
        started, notices = await super().start_runs(runs)
        return started, _as_hints(notices, runs)

    async def start_flows(self, runs: Sequence[NewRun]) -> tuple[list[StartedRun], list[Notice]]:
        """Start runs of flows; see `FlowStore.start_flows`.

        The start of one run says itself what one worker is told of: it knows its first steps.
        """
        started, notices = await super().start_flows(runs)
        return started, notices if len(runs) == 1 else _as_hints(notices, runs)

    async def ack_and_start(
        self, receipts: Sequence[Receipt], runs: Sequence[NewRun]
    ) -> tuple[bool, list[Notice]]:
        acked, notices = await super().ack_and_start(receipts, runs)
        return acked, _as_hints(notices, runs)

    async def start_buffered(
        self, *, run_ids: Sequence[UUID] | None = None, limit: int = 1000
    ) -> tuple[int, list[Notice]]:
        started, notices = await super().start_buffered(run_ids=run_ids, limit=limit)
        return started, notices if started >= _MANY else _as_hints(notices)

    async def fork_run(self, fork: Fork) -> tuple[Forking, list[Notice]]:
        outcome, notices = await super().fork_run(fork)
        return outcome, _as_hints(notices)

    async def fork_flow(self, fork: FlowFork) -> tuple[FlowForking, list[Notice]]:
        outcome, notices = await super().fork_flow(fork)
        return outcome, _as_hints(notices)

    async def retry_flow(
        self, run_id: UUID, new_run_id: UUID, *, from_step: str | None = None
    ) -> tuple[FlowRetry, list[Notice]]:
        outcome, notices = await super().retry_flow(run_id, new_run_id, from_step=from_step)
        return outcome, _as_hints(notices)

    async def notify(self, notices: Sequence[Notice]) -> None:
        """Send wake-ups: hints through Redis, if it takes them."""
        hints = [notice for notice in notices if notice.topic in HINTED_TOPICS]
        if not hints:
            await super().notify(notices)
            return
        others = [notice for notice in notices if notice.topic not in HINTED_TOPICS]
        _, left = await asyncio.gather(super().notify(others), self._hint(hints))
        queues = dict.fromkeys(hint.payload for hint in left)
        await super().notify([Notice(WORK_TOPIC, queue) for queue in queues])

    def read_hints(
        self, worker_id: str, queues: Sequence[str], handlers: Sequence[str]
    ) -> HintReader:
        activities = sum(handler.endswith("@0") for handler in handlers)
        topics = [
            *([STARTS_TOPIC] if activities < len(handlers) else []),
            *([ACTIVITIES_TOPIC] if activities else []),
        ]
        hints = [Notice(topic, queue) for topic in topics for queue in queues]

        async def streams() -> dict[Notice, str]:
            return await self._streams(hints)

        group = _digest("\n".join([*sorted(queues), "", *sorted(handlers)]))
        return Reader(self._server, streams, group, worker_id, lambda: self._listeners.listens)

    def hint_use(self) -> HintUse | None:
        return replace(self._server.use, listens=self._listeners.listens)

    async def check_hints(self) -> HintCheck | None:
        """Connect to Redis, as patiently as for a hint, and see if it takes hints. Add nothing."""
        server = RedisServer(self._redis_url)
        address = str(server)
        redis = None
        try:
            redis = await server.connect(ANSWER_SECONDS)
            await redis.xadd("holdfast:check", {FIELD: ""}, nomkstream=True)  # there is no such key
        except Exception as error:
            found = trouble(error)
            return HintCheck(address, found.what, found.way_out)
        finally:
            await close(redis)
        return HintCheck(address)

    async def _hint(self, hints: Sequence[Notice]) -> Sequence[Notice]:
        """Send hints; return those that were not sent."""
        try:
            streams = await self._streams(hints)
        except DatabaseError:
            return hints
        return await self._sender.send(streams)

    async def _streams(self, hints: Iterable[Notice]) -> dict[Notice, str]:
        """Return the streams of hints. No other database has the same, not even in one Redis."""
        if self._prefix is None:
            self._prefix = f"holdfast:{_digest(await self._database.identity())}:tasks"
        return {hint: f"{self._prefix}:{_STREAMS[hint.topic]}:{hint.payload}" for hint in hints}


def _as_hints(notices: Sequence[Notice], runs: Sequence[NewRun] = ()) -> list[Notice]:
    """Return notices of a call that starts runs as those of starts.

    Of what is due later, and of many runs, all workers are told: the one with the hint may be full
    by then, and is not enough.
    """
    counts = Counter(run.queue for run in runs)
    to_all = {queue for queue, count in counts.items() if count >= _MANY}
    to_all |= {run.queue for run in runs if run.start_at is not None or run.delay_seconds}
    return [
        Notice(STARTS_TOPIC, notice.payload)
        if notice.topic == WORK_TOPIC and notice.payload not in to_all
        else notice
        for notice in notices
    ]


def _import_client() -> None:
    with suppress(ImportError):  # said when it is needed
        import_module("redis.asyncio")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
