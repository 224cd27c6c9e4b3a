"""Every turn that a test drives by hand is closed when the test has ended."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runtime.bench import Bench
from tests.sessions import pytest_asyncio_loop_factories as pytest_asyncio_loop_factories


@pytest.fixture(autouse=True)
def close_turns() -> Iterator[None]:
    """Close them: what the collector closed would run on whichever loop runs then."""
    yield
    while Bench.made:
        Bench.made.pop().abandon()
