"""What the transactions of a shard leave for others: kept, sent, sent again, and taken once."""

from __future__ import annotations

import pytest

from holdfast import Client
from holdfast.store.port import Store
from tests.shards.app import app


@pytest.fixture
async def client(store: Store) -> Client:
    return Client(store=store, app=app)
