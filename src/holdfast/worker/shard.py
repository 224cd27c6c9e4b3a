"""Which shard a worker serves, if its database is one of several."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.errors import ConfigurationError
from holdfast.store.port import Store
from holdfast.store.shards import Members, shards_of


class Shard(NamedTuple):
    """The number of the worker's database, and the store of clients over all shards.

    The worker opens and closes that store: through it its runs reach what is in other shards.
    """

    number: int
    store: Store

    @property
    def members(self) -> Members:
        """The databases of all shards. Raises ConfigurationError for a store of one."""
        members = shards_of(self.store)
        if members is None:
            raise ConfigurationError("the store of a shard's worker is over all shards")
        return members


def is_home(shard: Shard | None) -> bool:
    """Return True if the worker's database has what is known by a name: schedules, queues."""
    return shard is None or shard.number == 0
