"""What the log says of a database that cannot be reached."""

from __future__ import annotations

import logging

import pytest

from holdfast.errors import DatabaseUnavailable, LockTimeout
from holdfast.worker.outage import Outage

logger = logging.getLogger("holdfast.tests.outage")


def test_an_outage_is_said_once_and_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """Fault: all duties said it at each try, hundreds of lines a minute."""
    caplog.set_level(logging.INFO, logger.name)
    times = [float(each) for each in range(0, 150, 10)]
    now = [0.0]
    outage, away = Outage(lambda: now[0]), DatabaseUnavailable("the database cannot be reached")
    outage.end(logger)
    for now[0] in times:
        for what in ("claiming is repeated", "heartbeat failed"):
            outage.tell(logger, what, away)
    outage.end(logger)
    outage.end(logger)
    said = [each.getMessage().partition(";")[0] for each in caplog.records]
    line = "claiming is repeated: the database cannot be reached"
    assert said == [line] * 3 + ["the database answers again, after 140 s"]
    caplog.clear()
    outage.tell(logger, "heartbeat failed", away)
    assert "heartbeat failed" in caplog.text, "the next outage is another one"


def test_failures_after_a_minute_without_any_are_another_outage(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Fault: one whose end nothing noticed counted into the length of the next one."""
    caplog.set_level(logging.INFO, logger.name)
    now = [0.0]
    outage, away = Outage(lambda: now[0]), DatabaseUnavailable("the database cannot be reached")
    for now[0] in (0.0, 7_200.0, 7_205.0):
        outage.tell(logger, "claiming is repeated", away)
    outage.end(logger)
    assert caplog.messages[-1] == "the database answers again, after 5 s"


def test_other_failures_are_said_each_time(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage()
    for _ in range(2):
        outage.tell(logger, "claiming is repeated", LockTimeout("a lock"))
    assert caplog.messages == ["claiming is repeated: a lock"] * 2
