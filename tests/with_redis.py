"""Redis for all tests: the stores that they make on PostgreSQL have hints."""

from __future__ import annotations

import os
from typing import Any

from holdfast.store import postgres
from holdfast.store.redis import RedisHintedStore

VARIABLE = "HOLDFAST_REDIS_URL"


class StoreWithRedis(RedisHintedStore):
    """A store on PostgreSQL with the Redis that the environment names."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(os.environ[VARIABLE], url, **options)


def use_redis() -> None:
    """Give this class to all who import `PostgresStore` from now on."""
    postgres.PostgresStore = StoreWithRedis  # type: ignore[misc]
