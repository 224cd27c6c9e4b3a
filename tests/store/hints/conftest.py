"""A Valkey server for each test, and workers that try again soon, or never look by themselves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.valkey import Valkey, valkey

from holdfast.store.redis import reading, sending
from holdfast.worker import claimer

from .hinted import Job, calculate, delegate


@pytest.fixture
def redis() -> Iterator[Valkey]:
    with valkey() as server:
        yield server


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again soon."""
    monkeypatch.setattr(sending, "_FIRST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(sending, "_LONGEST_PAUSE_SECONDS", 0.1)
    monkeypatch.setattr(reading, "_FIRST_WAIT_SECONDS", 0.05)
    monkeypatch.setattr(reading, "_LONGEST_WAIT_SECONDS", 0.1)


@pytest.fixture
def no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is found by looking again: a worker has to be told."""
    monkeypatch.setattr(claimer, "_FIRST_POLL_SECONDS", 3600.0)


@pytest.fixture(params=[calculate, delegate], ids=["starts", "activities"])
def job(request: pytest.FixtureRequest) -> Job:
    """Provide runs that hints tell of, and runs whose activities they tell of as well."""
    found: Job = request.param
    return found
