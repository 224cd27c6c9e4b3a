"""A new shard gets what was set by hand in the others."""

from __future__ import annotations

import pytest

from holdfast.store.port import Store
from holdfast.store.shards.changing import copy_settings
from holdfast.types import DeclaredRules, LimitRule, StartRules


async def test_what_was_taken_back_after_a_copy_is_not_kept(stores: list[Store]) -> None:
    source, target = stores[:2]
    rule = LimitRule(scope="queue", name="slow", kind="concurrency", most=3, holds="turn")
    await source.set_pause("queue", "slow", paused=True)
    await source.set_limit(rule)
    await copy_settings(source, target)
    await source.set_pause("queue", "slow", paused=False)
    await source.remove_limit("queue", "slow", "concurrency")
    await copy_settings(source, target)
    assert (await target.list_pauses(), await target.list_limits()) == ([], [])


@pytest.mark.parametrize("times", [1, 2])
async def test_a_new_shard_gets_what_was_set_by_hand(stores: list[Store], times: int) -> None:
    source, target = stores[:2]
    await source.set_pause("workflow", "spread/add_one", paused=True, reason="bad card data")
    await source.set_pause("queue", "slow", paused=True)
    await source.set_pause("queue", "fast", paused=True)
    await source.set_pause("queue", "fast", paused=False)
    rules = [
        LimitRule(scope="queue", name="slow", kind="concurrency", most=3, holds="turn"),
        LimitRule(scope="queue", name="slow", kind="rate", most=5, period_seconds=60),
    ]
    for rule in rules:
        await source.set_limit(rule)
    for build in ("b1", "b2", "b3"):
        await source.declare_build("spread", build, ["spread/add_one@1"])
    await source.promote_build("spread", "b2")
    await source.ramp_build("spread", "b3", 25)
    rule = StartRules(singleton_conflict="queue", singleton_key="input.customer")
    await source.declare_start_rules([DeclaredRules("spread/alone", 1, rule)])
    for _ in range(times):
        await copy_settings(source, target)
    assert await target.list_start_rules() == await source.list_start_rules() != []
    assert [(x.scope, x.name, x.reason) for x in await target.list_pauses()] == [
        (x.scope, x.name, x.reason) for x in await source.list_pauses()
    ]
    assert len(await target.list_pauses()) == 2
    assert [x.rule for x in await target.list_limits()] == [
        x.rule for x in await source.list_limits()
    ]
    assert len(await target.list_limits()) == 2
    found = {x.build: (x.is_current, x.ramp_percent, x.pinned) for x in await target.list_builds()}
    pinned = ("spread/add_one@1",)
    assert found == {
        "b1": (False, None, pinned),
        "b2": (True, None, pinned),
        "b3": (False, 25.0, pinned),
    }
