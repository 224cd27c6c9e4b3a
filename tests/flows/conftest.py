"""What the tests of flows share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from hand import Hand
from tests.sessions import by_hand
from tests.sessions import pytest_asyncio_loop_factories as pytest_asyncio_loop_factories


@pytest.fixture
def hand(database_url: str) -> Iterator[Hand]:
    with by_hand(database_url) as connection:
        yield Hand(connection)


@pytest.fixture
def hands(any_database_url: str) -> Iterator[Callable[[], Hand]]:
    """Make people at psql, each with a session of their own, on each server in turn."""
    with ExitStack() as stack:
        yield lambda: Hand(stack.enter_context(by_hand(any_database_url)))
