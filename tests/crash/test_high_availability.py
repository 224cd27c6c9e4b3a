"""Machines that die under load: a primary whose standby is promoted, and one of two servers.

Workers and clients use a URL with both hosts of the database. Each step of the load returns what
it was computed from, so a log in which two histories are mixed is seen.
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import pytest
from benchmarks.failures import measuring
from benchmarks.failures.app import TRACES
from benchmarks.failures.measuring import measure
from benchmarks.failures.scenarios import (
    AsynchronousPromotion,
    OneOfServersKilled,
    Scenario,
    SynchronousPromotion,
)

from tests.memory import ROOT

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]

QUICK_WORKER = """
import asyncio, sys
from benchmarks.failures.app import app
from tests.crash.worker import serve

asyncio.run(serve(sys.argv[1], app))
"""


@pytest.fixture(autouse=True)
def clusters_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the clusters in memory, as other files of tests: nothing kills the machine itself."""
    monkeypatch.setattr(tempfile, "tempdir", os.environ.get(ROOT))


class QuickAsynchronousPromotion(AsynchronousPromotion):
    """With short leases: a claim that was lost with the old primary is made again soon."""

    def start_workers(self) -> None:
        command = [sys.executable, "-c", QUICK_WORKER, self.url]
        traces = {TRACES: str(self.place.traces)}
        self.running = [self.place.program("worker", command, traces) for _ in range(self.workers)]


@pytest.fixture(autouse=True)
def few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start fewer runs a second: those that come while a busy machine is behind pile up."""
    monkeypatch.setattr(measuring, "RATE", 8)


def lost(figures: dict[str, Any]) -> int:
    return figures["runs lost"] + figures["signals lost"] + figures["ends lost"]


@pytest.mark.parametrize("scenario", [SynchronousPromotion, OneOfServersKilled])
def test_a_machine_that_dies_takes_nothing_with_it(scenario: type[Scenario]) -> None:
    """S15, traps 8, 22: whatever was acknowledged is there, and recorded once."""
    _, [figures] = measure(scenario, 1)
    assert figures["open"] > 0, "no run was open: the test shows nothing"
    assert (lost(figures), figures["twice"], figures["wrong"]) == (0, 0, [])


def test_promotion_of_a_standby_that_lags_mixes_no_histories() -> None:
    """S15. What it did not have is lost; each run continues from what it has, and ends well."""
    _, [figures] = measure(QuickAsynchronousPromotion, 1)
    assert lost(figures) > 0, "the standby had everything: the test shows nothing"
    assert (figures["twice"], figures["wrong"]) == (0, [])
