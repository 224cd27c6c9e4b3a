"""Random limits, keys, workers and kills: never more than a limit allows, and all runs end."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from uuid import UUID

import pytest
from clocks import Clock

from holdfast.store.port import Store
from holdfast.types import ClaimedTask, LimitRule

from .actors import SECOND, ManualWorker, start

HANDLERS = ("shop/buy@1", "shop/sell@1")
LEASE_SECONDS = 10
MOST_ROUNDS = 400  # to drain what is left: far more than any seed needs


@dataclass
class World:
    """What a test knows of its runs: who began when, what is held, and the rules that hold."""

    store: Store
    clock: Clock
    random: random.Random
    rules: list[LimitRule] = field(default_factory=list[LimitRule])
    keys: dict[UUID, tuple[str, str]] = field(default_factory=dict[UUID, tuple[str, str]])
    tokens: dict[UUID, int] = field(default_factory=dict[UUID, int])
    held: dict[UUID, ClaimedTask] = field(default_factory=dict[UUID, ClaimedTask])
    holders: dict[UUID, ManualWorker] = field(default_factory=dict[UUID, ManualWorker])
    begun: dict[UUID, int] = field(default_factory=dict[UUID, int])
    ended: set[UUID] = field(default_factory=set[UUID])

    async def start(self) -> None:
        """Start a run of one of the workflows for one of the customers."""
        name, customer = self.random.choice(HANDLERS)[:-2], self.random.choice("abc")
        tokens = self.random.choice((1, 1, 2, 5))
        given = json.dumps({"customer": customer, "tokens": tokens})
        delay = self.random.choice((None, None, 3.0))
        priority = self.random.randrange(5)
        run_id = await start(
            self.store, name=name, input=given, delay_seconds=delay, priority=priority
        )
        self.keys[run_id] = (name, customer)
        self.tokens[run_id] = tokens

    async def claim(self, limit: int) -> int:
        """Claim for one of the workers, and check that every limit is kept."""
        worker = ManualWorker(self.store, self.random.choice(("ann", "bob", "eve")))
        answer = await worker.claim(limit, handlers=HANDLERS, lease_seconds=LEASE_SECONDS)
        for task in answer.tasks:
            self.held[task.run_id], self.holders[task.run_id] = task, worker
            self.begun.setdefault(task.run_id, answer.now)
        self.check()
        return len(answer.tasks)

    def check(self) -> None:
        """Check each limit against what is held, and each rate against what has begun."""
        for rule in self.rules:
            concerned = [run for run in self.keys if self._concerns(rule, run)]
            for slot in {self._slot(rule, run) for run in concerned}:
                runs = [run for run in concerned if self._slot(rule, run) == slot]
                assert rule.most is not None
                if rule.kind == "rate":
                    assert rule.period_seconds is not None
                    period = round(rule.period_seconds * SECOND)
                    times = sorted(self.begun[run] for run in runs if run in self.begun)
                    for first, last in zip(times, times[rule.most :], strict=False):
                        assert last - first >= period, rule
                elif rule.kind == "units":
                    assert rule.period_seconds is not None
                    period = round(rule.period_seconds * SECOND)
                    used = [
                        (self.begun[run], min(self.tokens[run], rule.most))
                        for run in runs
                        if run in self.begun
                    ]
                    for since, _ in used:
                        within = [count for at, count in used if since <= at < since + period]
                        assert sum(within) <= rule.most, rule
                elif rule.holds == "run":
                    open_runs = [run for run in runs if run in self.begun and run not in self.ended]
                    assert len(open_runs) <= rule.most, rule
                else:
                    assert len([run for run in runs if run in self.held]) <= rule.most, rule

    async def act(self) -> None:
        """Let something happen to a run that is held."""
        run_id = self.random.choice(list(self.held))
        task, worker = self.held.pop(run_id), self.holders[run_id]
        match self.random.randrange(4):
            case 0:
                until = await self.store.now() + self.random.randrange(4) * SECOND
                await worker.suspend(task, until=until, expected=await self._length(run_id))
            case 1:
                await worker.release(task)
            case _:
                await self._finish(worker, task)

    async def kill(self) -> None:
        """Let all leases run out: nobody renews those of a killed worker."""
        await self.clock.advance(LEASE_SECONDS + 1)

    async def drain(self) -> None:
        """Finish everything. Nothing that could run waits for ever."""
        for _ in range(MOST_ROUNDS):
            for run_id in list(self.held):
                await self._finish(self.holders[run_id], self.held.pop(run_id))
            if len(self.ended) == len(self.keys):
                return
            if not await self.claim(50):
                await self.clock.advance(1)
        raise AssertionError(f"{len(self.keys) - len(self.ended)} runs never ran")

    async def _finish(self, worker: ManualWorker, task: ClaimedTask) -> None:
        await worker.finish(task, expected=await self._length(task.run_id))
        self.ended.add(task.run_id)

    async def _length(self, run_id: UUID) -> int:
        return len((await self.store.read_events([(run_id, 0)]))[run_id])

    def _concerns(self, rule: LimitRule, run_id: UUID) -> bool:
        return rule.scope == "queue" or rule.name == self.keys[run_id][0]

    def _slot(self, rule: LimitRule, run_id: UUID) -> str:
        return self.keys[run_id][1] if rule.key else ""


def draw_rules(chance: random.Random) -> list[LimitRule]:
    """Draw some limits, of different kinds and scopes."""
    rules: dict[tuple[str, str, str], LimitRule] = {}
    for _ in range(chance.randrange(1, 5)):
        on_queue, keyed = chance.random() < 0.5, chance.random() < 0.6
        kind = chance.choice(("concurrency", "concurrency", "rate", "units"))
        rule = LimitRule(
            scope="queue" if on_queue else "workflow",
            name="default" if on_queue else chance.choice(("shop/buy", "shop/sell")),
            kind=kind,  # type: ignore[arg-type]
            most=chance.randrange(1, 4),
            period_seconds=float(chance.choice((2, 5))) if kind in ("rate", "units") else None,
            key="input.customer" if keyed else "",
            holds=chance.choice(("turn", "run")) if kind == "concurrency" else None,  # type: ignore[arg-type]
            units="input.tokens" if kind == "units" else None,
            smooth=chance.random() < 0.3 if kind == "rate" else None,
        )
        rules[rule.name, rule.kind, rule.key] = rule
    return list(rules.values())


@pytest.mark.parametrize("seed", range(8))
async def test_no_limit_is_exceeded_and_no_run_waits_for_ever(
    store: Store, clock: Clock, seed: int
) -> None:
    chance = random.Random(seed)
    world = World(store, clock, chance)
    world.rules = draw_rules(chance)
    for _ in range(4):
        await world.start()
    for rule in world.rules:
        await store.set_limit(rule)
    for _ in range(40):
        draw = chance.random()
        if draw < 0.25:
            await world.start()
        elif draw < 0.65:
            await world.claim(chance.randrange(1, 6))
        elif draw < 0.9 and world.held:
            await world.act()
        elif draw < 0.97:
            await clock.advance(chance.choice((0.5, 1, 3)))
        else:
            await world.kill()
    await world.kill()
    await world.drain()
    await store.sweep_limits()
    assert [info.held for info in await store.list_limits()] == [0] * len(world.rules)
