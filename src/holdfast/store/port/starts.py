"""The part of the port for starts: of new runs, by rules, and from the logs of other runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from holdfast.errors import RunActive, RunError, StartThrottled
from holdfast.store.port.readable import readable
from holdfast.types import (
    DeclaredRules,
    Fork,
    Forking,
    HeldKey,
    NewRun,
    Notice,
    RetryPlan,
    StartedRun,
    StartWait,
)
from holdfast.values.moments import to_datetime


class StartStore(Protocol):
    """Starts runs, keeps the rules that starts obey, and copies logs into new runs."""

    async def start_runs(self, runs: Sequence[NewRun]) -> tuple[list[StartedRun], list[Notice]]:
        """Start runs; a run that exists already is left as it is and reported with its status.

        Each start writes the run, its WorkflowStarted event and its first task. The answers are
        in the order of `runs`; the same id twice in one call is one run, created once.
        """
        ...

    @readable
    async def declare_start_rules(self, rules: Sequence[DeclaredRules]) -> None:
        """Record the rules of workflows and flows; None takes those away that there were.

        What a program of a higher version has declared stays.
        """
        ...

    @readable
    async def list_start_rules(self) -> list[DeclaredRules]:
        """Return the rules that are in force, by name."""
        ...

    @readable
    async def list_start_keys(self, name: str, *, limit: int = 100) -> list[HeldKey]:
        """Return the keys of a workflow that rules hold now, at most `limit` of each rule."""
        ...

    @readable
    async def start_wait(self, run_id: UUID) -> StartWait | None:
        """Return the rule that a run waits for before it begins; None if it does not."""
        ...

    @readable
    async def expire_start_keys(self, *, limit: int = 1000) -> int:
        """Delete keys of debounces and throttles that have no meaning any more; return how many."""
        ...

    @readable
    async def free_singletons(self, *, limit: int = 1000) -> tuple[int, list[Notice]]:
        """Free keys of runs that ended while a row that was needed was locked.

        Returns the number of runs that were looked at, and the wake-ups.
        """
        ...

    async def fork_run(self, fork: Fork) -> tuple[Forking, list[Notice]]:
        """Start a run with a copy of another's log.

        The copy ends with WorkflowForked. The outcome says why there is no new run: `exists` if
        the new id is taken (a repeated call), `missing` if there is no such run, `running` for
        the retry of a run that has not failed, `unknown_key` for a result whose key is not in
        the copied part, `bad_index` for an index beyond the log's end or below 1, `unreadable`
        for a log with an event that no worker can read.
        """
        ...

    @readable
    async def retry_plan(self, run_id: UUID, *, failed_steps: bool = False) -> RetryPlan:
        """Return which ended calls of a run its retry would keep, and which it would make again.

        Empty for a run that cannot be retried, and for that of a flow.
        """
        ...


def refusal(workflow: str, started: StartedRun) -> RunError:
    """Return the error for a start that a rule of the workflow refused."""
    if started.refused == "debounce":
        return RunActive(
            started.run_id,
            f"run {started.run_id} of workflow {workflow} waits for a quiet time with the same "
            "key, and a child is not shared: start it without the parent",
        )
    if started.refused_until is None:
        return RunActive.of(workflow, started.run_id)
    return StartThrottled.of(workflow, to_datetime(started.refused_until))
