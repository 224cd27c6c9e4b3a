"""Sending hints: one entry for each queue, to a stream that is trimmed and expires."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from holdfast.store.redis.server import RedisServer, close, is_lost, naming, trouble
from holdfast.types import Notice

if TYPE_CHECKING:
    from redis.asyncio import Redis

FIELD: Final = "queue"  # of an entry; others' entries have no such field, and are passed over

_LONGEST_STREAM: Final = 1000  # entries, about; a worker that is further behind looks anyway
KEPT_SECONDS: Final = 7 * 24 * 3600  # a stream that gets no more hints removes itself
_KEEP_AGAIN_SECONDS: Final = 3600.0
_MOST_KNOWN: Final = 10_000  # streams; a program may have a queue for each reply
ANSWER_SECONDS: Final = 0.5
_SEND_SECONDS: Final = 1.0  # all hints of one call; notifications tell of the rest
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 30.0


async def add_hint(redis: Redis, stream: str | bytes, hint: Notice) -> None:
    with naming(stream):
        await redis.xadd(stream, {FIELD: hint.payload}, maxlen=_LONGEST_STREAM, approximate=True)


class Sender:
    """Sends hints over one connection, and leaves Redis alone for a while after it failed.

    Clients and workers may share a store, and so a sender: it makes one call after the other.
    """

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._redis: Redis | None = None
        self._using = asyncio.Lock()
        self._not_before, self._pause = 0.0, _FIRST_PAUSE_SECONDS
        self._kept: dict[str, float] = {}  # by stream: when its expiry was set

    async def send(self, streams: Mapping[Notice, str]) -> Sequence[Notice]:
        """Send each hint to its stream. Return the hints that Redis did not take."""
        async with self._using:
            return await self._send(streams)

    async def _send(self, streams: Mapping[Notice, str]) -> Sequence[Notice]:
        left = dict(streams)
        if time.monotonic() < self._not_before:
            self._server.refused += len(left)
            return list(left)
        try:
            async with asyncio.timeout(_SEND_SECONDS):
                was_idle = self._redis is not None
                try:
                    await self._add(left)
                except Exception as error:
                    if not (was_idle and is_lost(error)):
                        raise
                    await self._drop()  # it may have been closed since the last hint
                    await self._add(left)
        except Exception as error:
            await self._drop()
            self._not_before = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
            self._server.fails("sending", trouble(error))
        else:
            self._pause = _FIRST_PAUSE_SECONDS
            self._server.works("sending")
        self._server.sent += len(streams) - len(left)
        self._server.refused += len(left)
        return list(left)

    async def _add(self, left: dict[Notice, str]) -> None:
        """Add hints to their streams, and take out of `left` what was added."""
        if self._redis is None:
            self._redis = await self._server.connect(ANSWER_SECONDS)
        for hint, stream in list(left.items()):
            await add_hint(self._redis, stream, hint)
            del left[hint]
            await self._keep(self._redis, stream)

    async def _keep(self, redis: Redis, stream: str) -> None:
        """Set when a stream expires. An entry was added to it, so it is a stream of ours."""
        if time.monotonic() >= self._kept.get(stream, 0.0):
            await redis.expire(stream, KEPT_SECONDS)
            if len(self._kept) >= _MOST_KNOWN:
                self._kept.clear()
            self._kept[stream] = time.monotonic() + _KEEP_AGAIN_SECONDS

    async def close(self) -> None:
        """Close the connection; the next hint opens another."""
        async with self._using:
            await self._drop()

    async def _drop(self) -> None:
        redis, self._redis = self._redis, None
        await close(redis)
