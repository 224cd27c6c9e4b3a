"""Random limits, and runs that wait for them, on both stores, which must agree."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from machine_runs import CUSTOMERS, NAMES, PICK, WorkAgrees
from msgspec.structs import replace
from seeded import act, run_seeds, some

from holdfast.store.port import WORK_TOPIC, Store
from holdfast.types import LimitInfo, LimitKind, LimitRule, LimitScope, NewRun, NewSignal, Release

KEYS = ("", "input.customer")
PLACES: tuple[tuple[LimitScope, str], ...] = (
    ("queue", "default"),
    ("workflow", NAMES[0]),
    ("workflow", NAMES[1]),
)
KINDS: tuple[LimitKind, ...] = ("concurrency", "concurrency", "rate", "units")
MOST_ROUNDS = 300
# On PostgreSQL, tasks that wait since before a limit was removed stay in their groups, so these
# may take turns in another order. Here the tasks are put where they would be without that limit.
LEAVE_GROUPS_OF_REMOVED_LIMITS = """
    update holdfast.tasks t
    set limit_keys = n.limit_keys,
        limited_at = case when n.limit_keys is not null then t.limited_at end,
        visible_at = case when n.limit_keys is not null then t.visible_at else t.limited_at end
    from (
        select t.run_id, t.key, holdfast._limit_keys_of(
            t.run_id, t.queue, t.handler, t.key, t.lease_no, t.payload) as limit_keys
        from holdfast.tasks t
        where t.limited_at is not null and exists (
            select from holdfast.limits l
            where l.removed and t.limit_keys::jsonb ? l.limit_id::text)
    ) as n
    where n.run_id = t.run_id and n.key = t.key
"""


def draw_limit(chance: Random) -> LimitRule:
    """Draw a limit: of what runs at once, or of what begins in a period."""
    kind = chance.choice(KINDS)
    (scope, name), is_rate = chance.choice(PLACES), kind in ("rate", "units")
    return LimitRule(
        scope=scope,
        name=name,
        kind=kind,
        most=chance.randint(1, 3),
        key=chance.choice(KEYS),
        holds=None if is_rate else chance.choice([None, "turn", "run"]),
        period_seconds=4.0 if is_rate else None,
        smooth=chance.choice([None, True]) if kind == "rate" else None,
        units="input.tokens" if kind == "units" else None,
    )


class LimitsAgree(WorkAgrees):
    """Sets and removes limits while runs wait, begin, suspend, end, and are lost."""

    lease_seconds = 6.0

    def begin(self, chance: Random) -> None:
        """Begin with limits. Groups take turns in the order of their text, which has ids."""
        same_length = "alter sequence holdfast.limits_limit_id_seq restart with 1000"
        self.wait(self.clock.execute(same_length))
        for _ in range(chance.randint(0, 2)):
            self.limit(draw_limit(chance))

    @act(limit=draw_limit)
    def limit(self, limit: LimitRule) -> None:
        """Set a limit."""
        self.do(lambda store: store.set_limit(limit))

    @act(number=PICK)
    def unlimit(self, number: int) -> None:
        """Remove a limit."""
        rules = [limit.rule for limit in self.limits()]
        if rules:
            rule = rules[number % len(rules)]
            place = rule.scope, rule.name, rule.kind, rule.key
            self.do(lambda store: store.remove_limit(*place))
            self.do(lambda store: store.remove_limit(*place))
        self.wait(self.clock.execute(LEAVE_GROUPS_OF_REMOVED_LIMITS))

    @act(limits=lambda chance: [draw_limit(chance) for _ in range(chance.randint(0, 2))])
    def declare(self, limits: list[LimitRule]) -> None:
        """Declare what the code of an app says; a limit stands there once."""
        once = {(each.scope, each.name, each.kind, each.key): each for each in limits}
        self.do(lambda store: store.declare_limits("shop", list(once.values())))
        self.wait(self.clock.execute(LEAVE_GROUPS_OF_REMOVED_LIMITS))

    def limits(self) -> list[LimitInfo]:
        """Return the limits."""
        found: list[LimitInfo] = self.wait(self.model.list_limits())
        return found

    @act(
        weight=5, name=NAMES, customers=some(CUSTOMERS, 1, 3), priority=(2, 2, 1), tokens=(1, 2, 3)
    )
    def start(self, name: str, customers: list[str], priority: int, tokens: int) -> None:
        """Start runs, each at a moment of its own."""
        for customer in customers:
            text = json.dumps({"customer": customer, "tokens": tokens})
            run = NewRun(run_id=self.new_id(), name=name, input=text, priority=priority)
            self.do(lambda store, run=run: store.start_runs([run]))

    @act(when="ids", number=PICK, terminate=(True, False))
    def stop(self, number: int, terminate: bool) -> None:
        """End a run from outside, or ask it to end.

        That there is work is said in memory also for runs that no claim has found yet.
        """
        run_id = self.chosen([number])[0]
        if not terminate:
            self.do(lambda store: store.cancel_runs([run_id]))
            return
        self.turns.pop(run_id, None)

        async def end(store: Store) -> Any:
            said = await store.terminate_runs([run_id])
            return said.outcomes, [each for each in said.notices if each.topic != WORK_TOPIC]

        self.do(end)

    @act(when="turns", number=PICK)
    def release(self, number: int) -> None:
        """Give a run back, as a worker does that stops."""
        run_id = sorted(self.turns)[number % len(self.turns)]
        worker, task = self.turns.pop(run_id)
        back = Release(run_id, task.key, task.lease_no)
        self.do(lambda store: store.release_tasks(worker, [back]))

    @act(when="ids", number=PICK, what=("pause", "resume", "signal"))
    def control(self, number: int, what: str) -> None:
        """Pause a run, resume it, or signal it."""
        run_id = self.chosen([number])[0]
        if what == "pause":
            self.do(lambda store: store.pause_runs([run_id]))
        elif what == "resume":
            self.do(lambda store: store.resume_runs([run_id]))
        else:
            self.do(lambda store: store.signal_runs([NewSignal(run_id, "go", "1")]))

    def learn(self) -> None:
        """Compare what waits after a claim: before it, groups may have the limits of before."""
        super().learn()

        async def waits(store: Store) -> Any:
            reasons = [await store.explain_limits(run_id) for run_id in self.ids[-4:]]
            return [limit.waiting for limit in await store.list_limits()], reasons

        self.both(waits)

    def check(self) -> None:
        """Compare what the limits hold."""
        super().check()

        async def held(store: Store) -> Any:
            return [replace(limit, waiting=0) for limit in await store.list_limits()]

        self.both(held)

    def end(self) -> None:
        """Let everything run: nothing waits for ever."""
        for _ in range(MOST_ROUNDS):
            runs = self.wait(self.model.get_runs(self.ids))
            if all(run.status != "running" for run in runs.values()):
                self.both(lambda store: store.list_limits())
                return
            self.work("ann", 2, [], "ann")
            while self.turns:
                self.end_turn(0, "complete", "ann")
            self.do(lambda store: store.resume_runs(self.ids))
            signals = [NewSignal(run_id, "go") for run_id in self.ids]
            self.do(lambda store, signals=signals: store.signal_runs(signals))
            self.check()
        raise AssertionError("runs wait for ever")


@pytest.mark.timeout(600)
def test_both_stores_keep_limits_alike_whatever_is_asked(module_database_url: str) -> None:
    run_seeds(LimitsAgree, module_database_url, seeds=30, steps=40)
