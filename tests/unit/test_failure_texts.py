"""What people read of a failure: the user's traceback, once."""

from __future__ import annotations

from uuid import uuid4

import pytest

from holdfast.insight.spans import traceback_text
from holdfast.worker.failure_log import log_failed_run

CAUSE = {"kind": "builtins.ValueError", "message": "no", "traceback": "Traceback:\n  raise\n"}


def test_the_failure_of_a_flows_step_has_the_traceback_of_its_cause() -> None:
    failed = {"kind": "holdfast.errors.StepFailed", "message": "step words:8 failed: no"}
    assert traceback_text({**failed, "cause": CAUSE}).startswith("Traceback")
    assert traceback_text(failed) == ""


def test_an_error_without_a_traceback_stands_in_the_log_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log_failed_run(uuid4(), "buy", '{"kind": "holdfast.errors.InvalidInput", "message": "no int"}')
    assert caplog.text.count("no int") == 1
