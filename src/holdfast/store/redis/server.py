"""One connection to Redis, and what its errors mean to the person who runs it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast
from urllib.parse import urlsplit

from holdfast.errors import DatabaseError
from holdfast.types import HintUse
from holdfast.values.loggers import get_logger
from holdfast.values.waits import to_the_end

if TYPE_CHECKING:
    from redis.asyncio import Redis

logger = get_logger("holdfast.redis")

Part: TypeAlias = Literal["sending", "reading"]

_CONNECT_SECONDS: Final = 1.0
_SAY_AGAIN_SECONDS: Final = 60.0  # after so long a trouble that comes and goes is said again
_OLDEST: Final = (6, 2)  # the first with XAUTOCLAIM
_SOURCE: Final = "--redis or $HOLDFAST_REDIS_URL"

_SINGLE: Final = f"a cluster is not supported: name a single server in {_SOURCE}"
_PRIMARY: Final = f"name the primary server in {_SOURCE}"
_OTHERS: Final = (
    f"something else has written it: delete this key, or name another database in {_SOURCE}"
)

# By the first word of what the server says, or the class that the client has for it.
_WAYS_OUT: Final = {
    "NOAUTH": f"give user and password in {_SOURCE}: redis://USER:PASSWORD@HOST:6379/0",
    "invalid username-password": f"correct user and password in {_SOURCE}",
    "AUTH <password> called without": (
        f"the server has no password: leave it out of {_SOURCE}, or set requirepass there"
    ),
    "NoPermissionError": "let the user have +@stream +@connection +expire +info on ~holdfast:*",
    "MovedError": _SINGLE,
    "AskError": _SINGLE,
    "MasterDownError": _PRIMARY,
    "ClusterDownError": _SINGLE,
    "ClusterCrossSlotError": _SINGLE,
    "WRONGTYPE": _OTHERS,  # a key that became another type after it was joined
    "ReadOnlyError": _PRIMARY,
    "OutOfMemoryError": "give the server more memory, or hints a server of their own",
    "DB index is out of range": f"name a database that the server has in {_SOURCE}",
    "BusyLoadingError": "wait until the server has loaded its data",
    "max number of clients": "raise maxclients of the server",
    "ResponseError": f"put this right at the server, or name another one in {_SOURCE}",
}


class RedisTrouble(Exception):
    """Redis cannot be used now: what happened, and the way out."""

    def __init__(self, what: str, way_out: str) -> None:
        super().__init__(f"{what}; {way_out}")
        self.what, self.way_out = what, way_out


class RedisServer:
    """Connects to a server, checks it, says once what is wrong with it, and counts its hints."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._troubles: dict[Part, tuple[str, bool]] = {}  # the way out, and if it was said
        self._said_at: dict[str, float] = {}  # by way out
        self._works: dict[Part, bool] = {}
        self.sent = self.refused = self.read = self.claimed = 0

    @property
    def use(self) -> HintUse:
        """How hints were used. A reader decides if they arrive: it always waits for some."""
        works = self._works.get("reading", self._works.get("sending"))
        return HintUse(works, self.sent, self.refused, self.read, self.claimed)

    def __str__(self) -> str:
        """Return the address, without user and password."""
        try:
            parts = urlsplit(self._url)
            host = parts.hostname or ""
            port = "" if parts.port is None else f":{parts.port}"
        except ValueError:
            return "the URL"
        return f"{parts.scheme}://{host}{port}{parts.path}"

    async def connect(self, answer_seconds: float) -> Redis:
        """Return a connection to a server that is fit for hints. Raises RedisTrouble."""
        try:
            from redis.asyncio import Redis
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
        except ImportError:
            raise RedisTrouble(
                "the client for Redis is not installed", "pip install 'holdfast[redis]'"
            ) from None
        try:
            parts = urlsplit(self._url)
            if parts.scheme != "unix":
                int(parts.path.strip("/") or 0)  # the client would take database 0
            redis: Redis = cast("Any", Redis).from_url(  # its options have no types
                self._url,
                protocol=2,
                single_connection_client=True,
                socket_timeout=answer_seconds,
                socket_connect_timeout=_CONNECT_SECONDS,
                retry=Retry(NoBackoff(), 0),
                decode_responses=False,
            )
        except Exception:  # its message may quote a part of the password
            raise RedisTrouble(
                "the URL cannot be read", f"write redis://HOST:6379/0 in {_SOURCE}"
            ) from None
        try:
            await _check(redis)
        except BaseException as error:
            await close(redis)
            if isinstance(error, Exception):
                raise trouble(error) from error
            raise
        return redis

    def works(self, part: Part) -> None:
        """Say that Redis works, if the opposite was said and nothing else is wrong."""
        self._works[part] = True
        _, was_said = self._troubles.pop(part, ("", False))
        if was_said and not self._troubles:
            logger.info("Redis at %s is used again", self)

    def fails(self, part: Part, found: RedisTrouble) -> None:
        """Warn of a trouble when it begins, once: not if the other part has said the same.

        If it comes and goes, it is said once a minute.
        """
        self._works[part] = False
        way_out, now = found.way_out, time.monotonic()
        is_said = (way_out, True) in self._troubles.values()
        is_known = is_said or now < self._said_at.get(way_out, -math.inf) + _SAY_AGAIN_SECONDS
        self._troubles[part] = way_out, is_said or not is_known
        if not is_known:
            self._said_at[way_out] = now
        level = logging.DEBUG if is_known else logging.WARNING
        logger.log(
            level, "Redis at %s is not used, PostgreSQL wakes workers alone: %s", self, found
        )


async def _check(redis: Any) -> None:
    """Refuse a server that is too old, or part of a cluster. Raises RedisTrouble."""
    from redis.exceptions import NoPermissionError

    try:
        facts: dict[str, Any] = await redis.info()
    except NoPermissionError:  # the commands themselves will show what is missing
        await redis.ping()
        return
    if facts.get("cluster_enabled"):
        raise RedisTrouble("the server is part of a cluster", _SINGLE)
    version = str(facts.get("redis_version", "0"))
    if tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) < _OLDEST:
        raise RedisTrouble(
            f"the server has version {version}", "Redis 6.2 or Valkey 7.2 or newer is needed"
        )


def trouble(error: Exception) -> RedisTrouble:
    """Return what an error of the client means, or of the database that names the streams."""
    if isinstance(error, RedisTrouble):
        return error
    text = str(error).rstrip(".") or type(error).__name__
    if isinstance(error, DatabaseError):
        what = f"PostgreSQL did not say which streams are to be read: {text}"
        return RedisTrouble(what, "it is asked again")
    kinds = {kind.__name__ for kind in type(error).__mro__}
    for word, way_out in _WAYS_OUT.items():
        if text.startswith(word) or word in kinds:
            return RedisTrouble(f"the server refuses: {text}", way_out)
    if "AuthenticationError" in kinds:
        return RedisTrouble(f"the server refuses: {text}", _WAYS_OUT["NOAUTH"])
    way_out = f"start it, or correct {_SOURCE}: host and port, and rediss:// if it speaks TLS alone"
    return RedisTrouble(f"it cannot be used: {text}", way_out)


@contextmanager
def naming(stream: str | bytes) -> Generator[None]:
    """Name the key in the error if it is something else than a stream."""
    try:
        yield
    except Exception as error:
        if not str(error).startswith("WRONGTYPE"):
            raise
        name = stream if isinstance(stream, str) else stream.decode()
        raise RedisTrouble(f"the key {name} is not a stream", _OTHERS) from error


def is_lost(error: Exception) -> bool:
    """Return True if a connection was closed, as a server or a proxy closes those that are idle."""
    return type(error).__name__ == "ConnectionError"  # its subclasses are refusals


async def close(redis: Redis | None) -> None:
    """Close a connection, also while cancelled: its client would forget to close the socket."""
    if redis is not None:
        await to_the_end(_close(redis))


async def _close(redis: Redis) -> None:
    try:
        await redis.aclose()
    except Exception as error:
        logger.debug("closing the connection to Redis: %s", error)
