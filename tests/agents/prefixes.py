"""A run killed all over its log, and one whose prefix is continued, by other code too."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from holdfast import App
from holdfast.client.handle import RunHandle
from holdfast.definitions.steps import running_step
from holdfast.events import COMMANDS
from holdfast.store.memory import MemoryStore
from holdfast.testing import Environment
from holdfast.testing.crashes import CrashPlan, crashes
from holdfast.types import Decision, Event, NewRun, TurnCommit

MOST = 12  # points of a run: of each kind of entry, of each call, then spread over its log
COMPLETED = "StepCompleted"
LEASE_SECONDS = 5.0
LEDGER = "AGENTS_LEDGER"  # the file in which the effects of all processes leave their traces

effects: Counter[str] = Counter()  # what the steps of a test have done, by the key of the step

People = Callable[[Environment, RunHandle[Any]], Awaitable[None]]


def do(what: str = "") -> None:
    """Have an effect: a request that is paid, a tool that acts."""
    step = running_step()
    effects[what if step is None else step.key] += 1
    if step is not None and (ledger := os.environ.get(LEDGER)) is not None:
        with Path(ledger).open("a", encoding="utf-8") as file:
            file.write(f"{step.idempotency_key}\n")


async def nobody(env: Environment, handle: RunHandle[Any]) -> None:
    """Do nothing."""


async def approve_all(env: Environment, handle: RunHandle[Any]) -> None:
    """Approve what the run asks for, until it has ended."""
    while True:
        await env.wait_until_idle()
        asked = await handle.approvals()
        if not asked:
            return
        for each in asked:
            await env.client.approvals.decide(handle.run_id, each.key, True, by="ann")


class Recorded:
    """A run that has ended: its log, and what came of it."""

    def __init__(self, app: App, workflow: str, given: object, people: People) -> None:
        self.app, self.workflow, self.given, self.people = app, workflow, given, people
        self.run_id = uuid4()
        self.events: list[Event] = []
        self.result: object = None

    async def record(self) -> Recorded:
        """Let the run end without any crash."""
        effects.clear()
        async with Environment(self.app) as env:
            await self._start(env.store)
            self.result = await self._end(env)
            self.events = (await env.store.read_events([(self.run_id, 0)]))[self.run_id]
        assert effects == self.steps(self.events), "an effect without a record, or twice"
        return self

    async def check(self) -> int:
        """Kill the run's workers at points of its log; return how many there were.

        What is recorded is not done again, all else is done once or twice, the end is the same.
        """
        tries, points = crashes(most=MOST), -2  # the first two are without a kill
        for plan in tries.plans():
            points += 1
            effects.clear()
            async with Environment(self.app, plan=plan) as env:
                await self._start(env.store)
                handle: RunHandle[Any] = env.client.handle(self.run_id)
                await self.people(env, handle)
                assert await env.result(handle) == self.result, tries.describe(plan)
                assert (difference := plan.finish(env.store)) is None, difference
                self._check_effects(env.store.logs()[self.run_id], plan, tries.describe(plan))
        return points

    def _check_effects(self, log: Sequence[Event], plan: CrashPlan, what: str) -> None:
        made = self.steps(log)
        for key in made.keys() | effects.keys():
            most = made[key] + ((self.run_id, key) in plan.begun_again)
            assert made[key] <= effects[key] <= most, f"{key}: {what}"

    async def finish_from(self, length: int) -> object:
        """Continue from the first entries of the log; return the result."""
        effects.clear()
        env = Environment(self.app)
        await self._start(env.store)
        await self._write(env.store, self.events[:length])
        async with env:
            return await self._end(env)

    @staticmethod
    def steps(events: Sequence[Event]) -> Counter[str]:
        """Return the keys of the steps that have ended."""
        return Counter(event.key or "" for event in events if event.type == COMPLETED)

    async def _start(self, store: MemoryStore) -> None:
        name = f"{self.app.name}/{self.workflow}"
        run = NewRun(run_id=self.run_id, name=name, input=json.dumps(self.given))
        await store.start_runs([run])

    async def _end(self, env: Environment) -> object:
        handle: RunHandle[Any] = env.client.handle(self.run_id)
        await env.advance(LEASE_SECONDS + 1)
        await self.people(env, handle)
        return await env.result(handle)

    async def _write(self, store: MemoryStore, events: Sequence[Event]) -> None:
        """Write a log as a worker does that dies then; it holds the run until its lease ends."""
        ended = events[-1].type.startswith("Workflow") and len(events) > 1
        claims = await store.claim_tasks(
            "dead",
            ["default"],
            [f"{self.app.name}/{self.workflow}@1"],
            1,
            lease_seconds=LEASE_SECONDS,
        )
        [task] = claims.tasks
        for place, event in enumerate(events[:-1] if ended else events):
            if place > 0:
                await self._append(store, task.lease_no, place, event)

    async def _append(self, store: MemoryStore, lease_no: int, place: int, event: Event) -> None:
        details = json.loads(event.details or "{}")
        if event.type == "ApprovalResolved":
            decision = Decision(
                run_id=self.run_id,
                key=event.key or "",
                decision_id=str(place),
                approved=details["approved"],
                by=details.get("by"),
                feedback=details.get("feedback"),
            )
            await store.decide_approval(decision)
            return
        part = TurnCommit(
            self.run_id, lease_no, place, [event], has_commands=event.type in COMMANDS
        )
        committed = await store.commit("dead", uuid4(), [part])
        assert not committed.refused, committed.refused


async def check_prefixes(
    app: App, workflow: str, given: object, people: People = nobody
) -> Recorded:
    """Record a run, then kill its workers all over its log."""
    recorded = await Recorded(app, workflow, given, people).record()
    assert await recorded.check() >= 2  # a commit of its own, or none of it
    return recorded
