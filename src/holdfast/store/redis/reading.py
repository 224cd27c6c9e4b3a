"""Reading hints as one worker of a group: each hint goes to one worker of those that are alike."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from holdfast.store.redis.sending import FIELD, KEPT_SECONDS, add_hint
from holdfast.store.redis.server import RedisServer, close, is_lost, logger, naming, trouble
from holdfast.types import Notice

if TYPE_CHECKING:
    from redis.asyncio import Redis

_AT_ONCE: Final = 100  # entries
_BLOCK_SECONDS: Final = 5.0
_ANSWER_SECONDS: Final = 8.0  # longer than a read may block
_ABANDONED_SECONDS: Final = 10.0  # after so long a hint of another worker is taken over
_DEAD_SECONDS: Final = 3600.0  # a worker that was silent for so long is removed from its group
_TOLD: Final = 2  # workers, by one that could not take all of the work
_PAUSE_SECONDS: Final = 0.002  # from the end of a read to the next: so a stream costs few looks
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.25, 10.0
_STEADY_SECONDS: Final = 1.0  # a loss so soon after the group was joined is not one by chance
# After reads that brought nothing and did not wait either, as some proxies answer.
_FIRST_REST_SECONDS, _LONGEST_REST_SECONDS = 0.01, 1.0


# How errors begin that a flush causes: in a read, in one that waits, while the group is joined.
_FLUSHED: Final = ("NOGROUP", "UNBLOCKED", "no such key", "The XGROUP subcommand requires")


class Reader:
    """Reads what streams hint at. Only the name of a stream is trusted, not what is in it."""

    def __init__(
        self,
        server: RedisServer,
        streams: Callable[[], Awaitable[Mapping[Notice, str]]],
        group: str,
        consumer: str,
        listens: Callable[[], bool],
    ) -> None:
        self._server, self._group, self._consumer = server, group, consumer
        self._listens = listens
        self._streams = streams
        self._hints: dict[bytes, Notice] = {}  # by stream
        self._redis: Redis | None = None
        self._unfinished: dict[bytes, list[bytes]] = {}  # ids of entries, by stream
        self._collect_at = 0.0
        self._read_at = -math.inf  # when the last read ended
        self._wait = self._pause = 0.0  # after the next trouble; before the next connection
        self._joined_at = -math.inf
        self._waits = False  # reads wait for hints: the first since the group was joined did not
        self._must_look = False  # the connection was lost, and with it perhaps hints

    @property
    def suffices(self) -> bool:
        """True while hints arrive, and notifications of all else."""
        return self._redis is not None and self._listens()

    async def read(self) -> list[Notice]:
        """Wait for hints; return each once.

        When Redis has gone, and when it is back, it returns those of every queue, because hints may
        have been lost.
        """
        await asyncio.sleep(self._read_at + _PAUSE_SECONDS - time.monotonic())
        hints = await self._read()
        self._read_at = time.monotonic()
        return hints

    async def _read(self) -> list[Notice]:
        rest = _FIRST_REST_SECONDS
        while True:
            if self._must_look:
                self._must_look = False
                return list(self._hints.values())
            began = time.monotonic()
            try:
                if self._redis is None:
                    return await self._join()
                hints = await self._look(self._redis)
            except Exception as error:
                await self._fail(error)
                continue
            if hints:
                return hints
            if time.monotonic() < began + rest:
                await asyncio.sleep(rest)
                rest = min(2 * rest, _LONGEST_REST_SECONDS)

    async def done(self) -> None:
        """Say that the hints of the last read have been looked at."""
        unfinished, self._unfinished = self._unfinished, {}
        if self._redis is None:
            return
        try:
            for stream, ids in unfinished.items():
                await self._redis.xack(stream, self._group, *ids)
                self._server.claimed += len(ids)
        except Exception as error:
            await self._fail(error)

    async def pass_on(self, hints: Sequence[Notice]) -> bool:
        """Tell other workers of hints; return False if Redis does not take them.

        Two are told of each: so of a large backlog, many workers hear soon.
        """
        if self._redis is None:
            return False
        try:
            for stream, hint in self._hints.items():
                if hint in hints:
                    for _ in range(_TOLD):
                        await add_hint(self._redis, stream, hint)
                        self._server.sent += 1
        except Exception as error:
            await self._fail(error)
            return False
        return True

    async def close(self) -> Sequence[Notice]:
        """Leave the group; return the hints that were on their way here, or read and not done."""
        left: list[Notice] = []
        redis, self._redis = self._redis, None
        if redis is not None:
            try:
                async with asyncio.timeout(1):
                    for stream, hint in self._hints.items():
                        if await redis.xgroup_delconsumer(stream, self._group, self._consumer):
                            left.append(hint)
            except Exception as error:
                logger.debug("leaving the group of workers: %s", error)
            finally:
                await close(redis)
        return left

    async def _join(self) -> list[Notice]:
        await asyncio.sleep(self._pause)
        self._hints = {name.encode(): hint for hint, name in (await self._streams()).items()}
        self._collect_at = 0.0
        redis = await self._server.connect(_ANSWER_SECONDS)
        self._redis, self._joined_at, self._waits = redis, time.monotonic(), False
        self._unfinished = {}
        for stream in self._hints:
            try:
                with naming(stream):
                    await redis.xgroup_create(stream, self._group, id="0", mkstream=True)
            except Exception as error:
                if not str(error).startswith("BUSYGROUP"):
                    raise
            # Redis 7.0 would do it with the first hint, and the group looks empty until then.
            await redis.xgroup_createconsumer(stream, self._group, self._consumer)
            await redis.expire(stream, KEPT_SECONDS)
            await self._remove_dead(redis, stream)
        return list(self._hints.values())

    async def _remove_dead(self, redis: Redis, stream: bytes) -> None:
        """Remove workers that were killed, and other groups in which nobody is alive.

        A deployment with other handlers has other groups. A worker that lives after all is back,
        with its group, when it reads.
        """
        for group in await redis.xinfo_groups(stream):
            name = group["name"]
            consumers = await redis.xinfo_consumers(stream, name)
            dead = [each for each in consumers if each["idle"] >= 1000 * _DEAD_SECONDS]
            if name != self._group.encode() and len(dead) == len(consumers):
                await redis.xgroup_destroy(stream, name)
                continue
            for each in dead:
                if not each["pending"]:
                    await redis.xgroup_delconsumer(stream, name, each["name"])

    async def _look(self, redis: Redis) -> list[Notice]:
        found: Any
        if time.monotonic() >= self._collect_at:
            found = [await self._abandoned(redis, stream) for stream in self._hints]
            self._collect_at = time.monotonic() + _ABANDONED_SECONDS
        else:
            found = await redis.xreadgroup(
                self._group,
                self._consumer,
                dict.fromkeys(self._hints, ">"),
                count=_AT_ONCE,
                block=int(_BLOCK_SECONDS * 1000) if self._waits else None,
            )
            self._server.works("reading")
            self._waits, self._wait = True, 0.0
        hints: list[Notice] = []
        for stream, entries in found or ():
            for number, fields in entries:
                if number is None:  # trimmed before it was taken over
                    continue
                self._unfinished.setdefault(stream, []).append(number)
                hint = self._hints[stream]
                if fields is not None and fields.get(FIELD.encode()) == hint.payload.encode():
                    hints.append(hint)
        self._server.read += len(hints)
        if self._unfinished and not hints:  # nothing of ours
            await self.done()
        return list(dict.fromkeys(hints))

    async def _abandoned(self, redis: Redis, stream: bytes) -> tuple[bytes, Any]:
        """Take over the hints that a worker read and did not finish: it may have died."""
        answer = await redis.xautoclaim(
            stream,
            self._group,
            self._consumer,
            min_idle_time=int(_ABANDONED_SECONDS * 1000),
            count=_AT_ONCE,
        )
        return stream, answer[1]

    async def _fail(self, error: Exception) -> None:
        """Close the connection; the next read returns hints of every queue if one was open.

        If Redis was only flushed, or has closed a connection that was idle, the group is joined
        again at once. Before each further attempt a growing time passes.
        """
        redis, self._redis = self._redis, None
        is_flushed = str(error).startswith(_FLUSHED)
        is_steady = redis is not None and time.monotonic() >= self._joined_at + _STEADY_SECONDS
        is_harmless = is_steady and (is_flushed or is_lost(error))
        if not is_flushed:
            self._must_look = self._must_look or redis is not None
            if not is_harmless:
                self._server.fails("reading", trouble(error))
        await close(redis)
        self._pause = 0.0 if is_harmless else self._wait or _FIRST_WAIT_SECONDS
        self._wait = min(2 * max(self._wait, _FIRST_WAIT_SECONDS), _LONGEST_WAIT_SECONDS)
