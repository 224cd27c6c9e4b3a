"""Which shard a worker serves, if its database is one of several."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.errors import ConfigurationError, DatabaseUnavailable
from holdfast.store.port import Store
from holdfast.values.loggers import get_logger

if TYPE_CHECKING:
    from holdfast.store.shards import Members

logger = get_logger("holdfast.worker")

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 10.0

SHARD_CONNECTIONS: Final = 2
"""To each of the databases, of the store over all that a worker has."""


class Shard(NamedTuple):
    """The number of the worker's database, and the store of clients over all shards.

    The worker opens and closes that store: through it its runs reach what is in other shards.
    """

    number: int
    store: Store

    @property
    def members(self) -> Members:
        """The databases of all shards. Raises ConfigurationError for a store of one."""
        from holdfast.store.shards import shards_of

        members = shards_of(self.store)
        if members is None:
            raise ConfigurationError("the store of a shard's worker is over all shards")
        return members


def is_home(shard: Shard | None) -> bool:
    """Return True if the worker's database has what is known by a name: schedules, queues."""
    return shard is None or shard.number == 0


async def is_served(store: Store) -> bool:
    """Open the store of a shard; return False if its database is away, or spare."""
    try:
        return await _is_shard(store)
    except DatabaseUnavailable:
        return False


async def until_served(
    store: Store, number: int, declare: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Open the store of a shard; wait as long as its database is away, or spare.

    It is asked again after a second, and then more and more seldom. A spare one without runs is
    given what the code declares: flows can start there as soon as it is a shard. Raises what
    `Store.open` and `declare` raise for a database that answers.
    """
    pause, told = _FIRST_PAUSE, None
    while True:
        try:
            if await _is_shard(store):
                return
            if declare is not None and not any((await store.count_runs(None, 1)).values()):
                await declare()
                declare = None
            state, why = "spare", "`holdfast shards add` makes it a shard"
        except DatabaseUnavailable as error:
            state, why = "away", str(error)
        if state != told:
            told, place = state, number + 1
            logger.warning(
                "the worker of shard %d waits: database %d is %s: %s", number, place, state, why
            )
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)


async def _is_shard(store: Store) -> bool:
    await store.open()
    return await store.shard_state() is not None
