"""What the tests of flows share."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from hand import Hand


@pytest.fixture
def hand(database_url: str) -> Iterator[Hand]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield Hand(connection)
