"""A Valkey or Redis server for each test, and workers that look again soon, or never."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.utils import get_lib_version
from tests.valkey import REDIS, Valkey, valkey

from holdfast.store.redis import reading, sending, server, store
from holdfast.worker import claimer

from .hinted import Job, calculate, delegate


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Try hints of activities with one of the two programs: what they tell of is all the same."""
    items[:] = [
        item
        for item in items
        if not {"redis", "activities"} <= set(item.name.rstrip("]").partition("[")[2].split("-"))
        or Path(__file__).parent not in item.path.parents
    ]


@pytest.fixture(params=["valkey", "redis"])
def redis(request: pytest.FixtureRequest) -> Iterator[Valkey]:
    """Provide a server: both programs, where Redis is installed."""
    is_redis = request.param == "redis"
    if is_redis and REDIS is None:
        pytest.skip("Redis is not installed")
    with valkey(is_redis=is_redis) as server:
        yield server


known_version = functools.cache(get_lib_version)


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again soon, and do not let the client look its version up for each connection."""
    monkeypatch.setattr("redis.utils.get_lib_version", known_version)
    monkeypatch.setattr(sending, "_FIRST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(sending, "_LONGEST_PAUSE_SECONDS", 0.1)
    monkeypatch.setattr(reading, "_FIRST_WAIT_SECONDS", 0.05)
    monkeypatch.setattr(reading, "_LONGEST_WAIT_SECONDS", 0.1)


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for Redis as long as a slow machine needs: what is said is not that it is late."""
    monkeypatch.setattr(server, "_CONNECT_SECONDS", 60.0)
    monkeypatch.setattr(reading, "_ANSWER_SECONDS", 60.0)
    for module in (sending, store):
        monkeypatch.setattr(module, "ANSWER_SECONDS", 60.0)
    monkeypatch.setattr(sending, "_SEND_SECONDS", 60.0)


@pytest.fixture
def no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is found by looking again: a worker has to be told."""
    monkeypatch.setattr(claimer, "_FIRST_POLL_SECONDS", 3600.0)


@pytest.fixture(params=[calculate, delegate], ids=["starts", "activities"])
def job(request: pytest.FixtureRequest) -> Job:
    """Provide runs that hints tell of, and runs whose activities they tell of as well."""
    found: Job = request.param
    return found
