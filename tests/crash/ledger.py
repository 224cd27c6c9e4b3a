"""Holding the effects outside against the logs: nothing lost, nothing repeated unexplained."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, cast

import psycopg

from holdfast.client import Client, Run
from holdfast.database.embedded import EmbeddedServer
from holdfast.types import LoggedEvent

TERMINAL = {"WorkflowCompleted", "WorkflowFailed", "WorkflowCanceled", "WorkflowTimedOut"}
# What the log may have but once for a key, and what asked for it.
ANSWERS = {
    "ActivityCompleted": "ActivityScheduled",
    "ChildCompleted": "ChildStarted",
    "ApprovalResolved": "ApprovalRequested",
    "UpdateCompleted": "UpdateAccepted",
}


def read_ledger(path: Path) -> dict[str, list[str]]:
    """Return the nonces of all executions by the id of their step or activity."""
    executions: dict[str, list[str]] = defaultdict(list)
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        executions[entry["id"]].append(entry["nonce"])
    return executions


async def check_runs(client: Client, runs: list[Run], ledger: Path) -> Counter[str]:
    """Check every run against the ledger; return what was seen, for the test to look at."""
    executions, seen = read_ledger(ledger), Counter[str]()
    for run in runs:
        log = await client.runs.log(run.run_id)
        seen += check_run(run, log, executions)
    return seen


def check_run(run: Run, log: list[LoggedEvent], executions: dict[str, list[str]]) -> Counter[str]:
    """Check one run: its log is sound, its output is its log's, its effects are explained."""
    types = [entry.event.type for entry in log]
    assert [entry.idx for entry in log] == list(range(len(log))), "a gap or a repetition"
    assert run.status == "completed", f"{run.run_id} {run.status} {run.error}"
    assert types[-1] == "WorkflowCompleted"
    assert not TERMINAL & set(types[:-1]), "an event after the end"
    check_answers(log)

    recorded: dict[str, str] = {}
    below: list[str] = []
    retries, lost = Counter[str](), Counter[str]()  # by key; that of a lost turn is empty
    steps: set[str] = set()
    for entry in log:
        event, key = entry.event, entry.event.key or ""
        details: Any = json.loads(event.details or "null")
        match event.type:
            case "StepCompleted" | "ActivityCompleted":
                assert key not in recorded, f"{key} was recorded twice"
                recorded[key] = details["result"]["nonce"]
                if event.type == "StepCompleted":
                    steps.add(key)
            case "ChildCompleted":
                below += details["output"]
            case "StepRetryScheduled" | "ActivityRetryScheduled":
                retries[key] += 1
            case "WorkerLost":
                lost[details["task_key"]] += 1
    output = cast("list[str]", run.output)
    assert sorted(output) == sorted([*recorded.values(), *below]), "a result was not used once"

    extra = 0
    for key, nonce in recorded.items():
        nonces = executions[f"{run.run_id}/{key}"]
        assert nonce in nonces, f"{key}: the recorded execution left no trace"
        unrecorded = len(nonces) - 1 - retries[key]
        explained = lost["" if key in steps else key]
        assert unrecorded <= explained, (
            f"{key}: {unrecorded} executions that no lost worker explains"
        )
        extra += max(0, unrecorded)
    turns = lost.pop("", 0)
    return Counter(
        runs=1,
        lost=turns,
        lost_activities=lost.total(),
        extra=extra,
        retries=retries.total(),
        steps=len(steps),
        activities=len(recorded) - len(steps),
    )


def check_answers(log: list[LoggedEvent]) -> None:
    """Check that whatever was asked for was answered once, and no message came twice."""
    keys: dict[str, Counter[str]] = defaultdict(Counter)
    for entry in log:
        keys[entry.event.type][entry.event.key or ""] += 1
    for answer, question in ANSWERS.items():
        assert keys[answer] == keys[question], f"{answer} and {question} do not match"
        assert set(keys[answer].values()) <= {1}, f"{answer} came twice"
    assert set(keys["SignalReceived"].values()) <= {1}, "a message was taken twice"


def check_nothing_is_queued(server: EmbeddedServer) -> None:
    """Check that no task outlived its run."""
    with psycopg.connect(server.url) as connection:
        left = connection.execute("select run_id, key, kind from holdfast.tasks").fetchall()
    assert not left
