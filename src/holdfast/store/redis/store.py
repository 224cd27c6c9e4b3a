"""The store on PostgreSQL with hints through Redis: these tell of starts, in place of NOTIFY."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

from holdfast.errors import DatabaseError
from holdfast.store.port import STARTS_TOPIC, WORK_TOPIC
from holdfast.store.port.listening import HintReader
from holdfast.store.postgres import PostgresStore
from holdfast.store.redis.reading import Reader
from holdfast.store.redis.sending import Sender
from holdfast.store.redis.server import RedisServer, RedisTrouble, close
from holdfast.types import HintCheck, NewRun, Notice, StartedRun

_ANSWER_SECONDS: Final = 2.0  # for a check that a person waits for
_DIGITS: Final = 16


class RedisHintedStore(PostgresStore):
    """A `PostgresStore` whose starts are told to one worker, through Redis.

    All other notices go through PostgreSQL, and those of starts as well while Redis fails. Workers
    listen there too: for programs that do not know of Redis.
    """

    def __init__(self, redis_url: str, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self._database.tell_starts = None
        self._redis_url = redis_url
        self._sender = Sender(RedisServer(redis_url))
        self._prefix: str | None = None

    async def close(self) -> None:
        """Close every connection."""
        await self._sender.close()
        await super().close()

    async def start_runs(self, runs: Sequence[NewRun]) -> tuple[list[StartedRun], list[Notice]]:
        """Start runs; see `StartStore.start_runs`."""
        started, notices = await super().start_runs(runs)
        return started, _as_hints(notices)

    async def start_flows(self, runs: Sequence[NewRun]) -> tuple[list[StartedRun], list[Notice]]:
        """Start runs of flows; see `FlowStore.start_flows`."""
        started, notices = await super().start_flows(runs)
        return started, _as_hints(notices)

    async def notify(self, notices: Sequence[Notice]) -> None:
        """Send wake-ups: those of starts through Redis, if it takes them."""
        queues = [notice.payload for notice in notices if notice.topic == STARTS_TOPIC]
        if not queues:
            await super().notify(notices)
            return
        others = [notice for notice in notices if notice.topic != STARTS_TOPIC]
        _, left = await asyncio.gather(super().notify(others), self._hint(queues))
        await super().notify([Notice(WORK_TOPIC, queue) for queue in left])

    def read_hints(
        self, worker_id: str, queues: Sequence[str], handlers: Sequence[str]
    ) -> HintReader:
        """Return a reader of hints for a worker; see `ListenStore.read_hints`."""

        async def streams() -> dict[str, str]:
            return await self._streams(queues)

        group = _digest("\n".join([*sorted(queues), "", *sorted(handlers)]))
        return Reader(RedisServer(self._redis_url), streams, group, worker_id)

    async def check_hints(self) -> HintCheck:
        """Connect to Redis, and look at what is stored under our names."""
        server = RedisServer(self._redis_url)
        address = str(server)
        try:
            redis = await server.connect(_ANSWER_SECONDS)
            await close(redis)
        except RedisTrouble as error:
            return HintCheck(address, error.what, error.way_out)
        return HintCheck(address)

    async def _hint(self, queues: Sequence[str]) -> Sequence[str]:
        """Send hints; return the queues of those that were not sent."""
        try:
            streams = await self._streams(queues)
        except DatabaseError:
            return queues
        return await self._sender.send(streams)

    async def _streams(self, queues: Iterable[str]) -> dict[str, str]:
        """Return the streams of queues. No other database has the same, not even in one Redis."""
        if self._prefix is None:
            self._prefix = f"holdfast:{_digest(await self._database.identity())}:tasks:wf:"
        return {queue: self._prefix + queue for queue in queues}


def _as_hints(notices: Sequence[Notice]) -> list[Notice]:
    return [
        Notice(STARTS_TOPIC, notice.payload) if notice.topic == WORK_TOPIC else notice
        for notice in notices
    ]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
