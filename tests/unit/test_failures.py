"""The table of failures: what was lost, repeated or mixed up is seen, and nothing else is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from benchmarks.failures import table
from benchmarks.failures.app import Job, Trace
from benchmarks.failures.audit import Evidence, Failure, History, Window, faults
from benchmarks.failures.load import WORD, Order
from benchmarks.failures.scenarios import PLAIN, WorkerKilled

from holdfast.client import Run
from holdfast.types import Event, LoggedEvent

RUN = UUID(int=7)
KEYS = ("act", "act:2", "act:3", "errand", "act:4")
NONCES = [f"nonce-{number}" for number in range(5)]
AFTER = ["", NONCES[0], NONCES[1] + WORD, NONCES[2], NONCES[3]]
JOB = Job(number=1, length=1)
FAILURE = Failure(at=100.0, dead=[1])


def event(index: int, type: str, at: float, key: str | None = None, result: Any = None) -> Any:
    details = None if result is None else json.dumps({"result": result})
    return LoggedEvent(run_id=RUN, idx=index, event=Event(type, key, details, int(at * 1e6)))


def history(after: list[str] = AFTER, **run: Any) -> History:
    """Return a run that was open at the failure, with a step at 99 s and the others later."""
    log = [event(0, "WorkflowStarted", 98)]
    for number, (key, nonce, cause) in enumerate(zip(KEYS, NONCES, after, strict=True)):
        kind = "ActivityCompleted" if key == "errand" else "StepCompleted"
        effect = {"nonce": nonce, "after": cause}
        log.append(event(number + 1, kind, 99 + 5 * number, key, effect))
    log.append(event(6, "WorkflowCompleted", 119))
    fields = {"run_id": RUN, "status": "completed", "error": None, "output": NONCES, **run}
    order = Order(JOB, asked_at=97.9, run_id=RUN, started_at=98.0, ended_at=119.5)
    return History(order, cast("Run", SimpleNamespace(**fields)), log)


def traces() -> list[Trace]:
    """Return what the executions of the run left: the second began before the failure."""
    times = [98.5, 99.5, 103.5, 108.5, 113.5]
    return [
        Trace(what=what, call=f"{RUN}/{key}", nonce=nonce, after=cause, pid=2, at=at)
        for key, nonce, cause, at in zip(KEYS, NONCES, AFTER, times, strict=True)
        for what in ("begin", "effect")
    ]


def judge(history: History, left: list[Trace], failure: Failure = FAILURE) -> dict[str, Any]:
    evidence = Evidence([history.order], [history], left, durable=True)
    return evidence.judge(failure, Window(0, 130))


def test_a_run_that_only_waited_costs_time_and_nothing_else() -> None:
    figures = judge(history(), traces())
    assert (figures["open"], figures["held"], figures["last"]) == (1, 0, 4.0)
    assert (figures["pause"], figures["caller"]) == (5.0, 0.1)
    assert [figures[name] for name in (*table.LOST, *table.COUNTS)] == [0] * 5
    assert figures["wrong"] == []


def test_a_step_that_died_with_its_worker_is_repeated_by_another() -> None:
    died = Trace(what="effect", call=f"{RUN}/act:2", nonce="x", after=NONCES[0], pid=1, at=99.2)
    left = [replace_at(trace, 101.0) for trace in traces()]
    figures = judge(history(), [{**died, "what": "begin"}, died, *left])
    assert (figures["held"], figures["first"], figures["repeated"]) == (1, 1.0, 1)
    assert figures["wrong"] == []


def replace_at(trace: Trace, earliest: float) -> Trace:
    """Return a trace that is not before a moment, unless it is of the first step."""
    at = trace["at"] if trace["call"].endswith("/act") else max(trace["at"], earliest)
    return {**trace, "at": at}


def test_what_was_acknowledged_and_is_gone_is_lost() -> None:
    gone = Order(JOB, asked_at=99.0, run_id=UUID(int=8), started_at=99.1, lost=True)
    figures = Evidence([gone], [], [], durable=False).judge(FAILURE, Window(0, 130))
    assert (figures["runs"], figures["runs lost"]) == (1, 1)
    before = Evidence([gone], [], [], durable=False).judge(FAILURE, Window(100, 130))
    assert (before["runs"], before["runs lost"]) == (0, 0)


def test_a_result_that_was_recorded_twice_is_seen() -> None:
    twice = history()
    again = event(7, "StepCompleted", 120, "act", {"nonce": NONCES[0], "after": ""})
    figures = judge(replace(twice, log=[*twice.log, again]), traces())
    assert figures["twice"] == 1


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (history(status="failed", error="Oops"), "it failed: 'Oops'"),
        (history(output=NONCES[:4]), "its output is not what is recorded"),
        (history([*AFTER[:4], "of another history"]), "computed from another than the recorded"),
        (history([*AFTER[:2], NONCES[1], *AFTER[3:]]), "computed from another than the recorded"),
    ],
)
def test_a_run_that_ended_wrong_is_named_with_the_fault(broken: History, said: str) -> None:
    [fault] = faults(broken, traces(), durable=True)
    assert fault.startswith(f"{RUN}: ")
    assert said in fault


def test_a_log_with_a_gap_is_a_fault() -> None:
    whole = history()
    gap = [*whole.log[:2], *whole.log[3:]]
    found = faults(replace(whole, log=gap), traces(), durable=True)
    assert any("gap" in fault for fault in found)


def test_a_recorded_step_that_was_never_executed_is_a_fault() -> None:
    [fault] = faults(history(), traces()[2:], durable=True)
    assert "1 recorded executions never happened" in fault


def test_a_step_whose_cause_is_not_recorded_is_a_fault_unless_records_may_be_lost() -> None:
    early = Trace(what="begin", call=f"{RUN}/act:2", nonce="x", after="lost", pid=1, at=99)
    [fault] = faults(history(), [*traces(), early], durable=True)
    assert "before its cause was durable" in fault
    assert faults(history(), [*traces(), early], durable=False) == []


def test_the_table_of_a_page_is_replaced_and_the_rest_is_kept(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    about: dict[str, Any] = {
        "date": "2026-01-02",
        "alone": False,
        "postgresql": "18.1 (Debian)",
        "machine": {
            "python": "3.11.7",
            "cores": "2",
            "processor": "P",
            "memory": "24 GiB",
            "fsync of 8 kB, p50": "0.10 ms",
        },
    }
    tries = [judge(history(), traces()), judge(history(), traces()) | {"repeated": 3}]
    results = {WorkerKilled.name: {"about": about, "tries": tries}}
    for _ in range(2):
        table.write_document(results, PLAIN, page)
    text = page.read_text()
    assert text.startswith(f"before\n{table.BEGIN}\n| failure |")
    assert text.endswith(f"\n{table.END}\nafter\n")
    assert "old" not in text
    row = f"| {WorkerKilled.title} | 2 | 5.0, 5.0 |  | 4.0, 4.0 | 0.1, 0.1 | 0 | 1.5, 3 | 0 | 0 |"
    assert row in text
    assert "preliminary" in text


def test_a_page_without_a_place_for_the_table_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing")
    with pytest.raises(SystemExit, match="has no lines"):
        table.write_document({}, PLAIN, page)
