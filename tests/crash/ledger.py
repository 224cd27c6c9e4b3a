"""Holding the effects outside against the logs: nothing lost, nothing repeated unexplained."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path

from holdfast.client import Client
from holdfast.types import LoggedEvent, Run

TERMINAL = {"WorkflowCompleted", "WorkflowFailed", "WorkflowCanceled", "WorkflowTimedOut"}


def read_ledger(path: Path) -> dict[str, list[str]]:
    """Return the nonces of all executions by step id."""
    executions: dict[str, list[str]] = defaultdict(list)
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        executions[entry["id"]].append(entry["nonce"])
    return executions


async def check_runs(client: Client, runs: list[Run], ledger: Path) -> Counter[str]:
    """Check every run against the ledger; return what was seen, for the test to look at."""
    executions, seen = read_ledger(ledger), Counter[str]()
    for run in runs:
        log = await client.log(run.run_id)
        seen += check_run(run, log, executions)
    return seen


def check_run(run: Run, log: list[LoggedEvent], executions: dict[str, list[str]]) -> Counter[str]:
    """Check one run: its log is sound, its output is its log's, its effects are explained."""
    types = [entry.event.type for entry in log]
    assert [entry.idx for entry in log] == list(range(len(log))), "a gap or a repetition"
    assert run.status == "completed", f"{run.run_id} {run.status} {run.error}"
    assert types[-1] == "WorkflowCompleted"
    assert not TERMINAL & set(types[:-1]), "an event after the end"

    recorded: dict[str, str] = {}
    retries: Counter[str] = Counter()
    lost = types.count("WorkerLost")
    for entry in log:
        event = entry.event
        details = json.loads(event.details or "null")
        if event.type == "StepCompleted":
            assert event.key is not None
            assert event.key not in recorded, f"{event.key} was recorded twice"
            recorded[event.key] = details["result"]["nonce"]
        elif event.type == "StepRetryScheduled":
            assert event.key is not None
            retries[event.key] += 1
    output = json.loads(run.output or "null")
    assert sorted(output) == sorted(recorded.values()), "a recorded result was not used once"

    extra = 0
    for key, nonce in recorded.items():
        nonces = executions[f"{run.run_id}/{key}"]
        assert nonce in nonces, f"{key}: the recorded execution left no trace"
        unrecorded = len(nonces) - 1 - retries[key]
        assert unrecorded <= lost, f"{key}: {unrecorded} executions that no lost worker explains"
        extra += max(0, unrecorded)
    return Counter(runs=1, lost=lost, extra=extra, retries=retries.total(), steps=len(recorded))
