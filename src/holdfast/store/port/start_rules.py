"""The part of the port for the rules of starts: singletons, debounces, throttles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from holdfast.errors import RunActive, RunError, StartThrottled
from holdfast.store.port.readable import readable
from holdfast.types import DeclaredRules, HeldKey, Notice, StartedRun, StartWait
from holdfast.values.moments import to_datetime


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


class StartRuleStore(Protocol):
    """Records what workflows declare; starts obey it."""

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
