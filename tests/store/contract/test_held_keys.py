"""What rules for starts hold: for which key, and until when."""

from __future__ import annotations

import json
from uuid import UUID

import pytest
from clocks import Clock

from holdfast.errors import InvalidInput
from holdfast.store.port import Store
from holdfast.types import DeclaredRules, HeldKey, StartRules

from .actors import SECOND, ManualWorker, new_run

RULES = StartRules(
    singleton_conflict="queue",
    singleton_key="input.customer",
    throttle_limit=2,
    throttle_period_seconds=60.0,
    throttle_excess="delay",
)
DEBOUNCE = StartRules(debounce_seconds=5.0, debounce_key="input.customer")


async def start(store: Store, name: str, customer: str) -> UUID:
    """Start a run for a customer; return the one that it led to."""
    given = json.dumps({"customer": customer})
    [started], _ = await store.start_runs([new_run(name=name, input=given)])
    return started.run_id


async def test_held_keys_are_listed_by_rule(store: Store, clock: Clock, ann: ManualWorker) -> None:
    await store.declare_start_rules(
        [DeclaredRules("order", 1, RULES), DeclaredRules("index", 1, DEBOUNCE)]
    )
    began = await store.now()
    assert await store.list_start_keys("order") == []
    first = await start(store, "order", "ann")
    assert await store.list_start_keys("order") == [HeldKey("singleton", "ann", first, 0, None)]
    await start(store, "order", "ann")
    other = await start(store, "order", "bob")
    full = HeldKey("throttle", "", None, 0, began + 120 * SECOND)
    assert await store.list_start_keys("order", limit=1) == [
        HeldKey("singleton", "ann", first, 1, None),
        HeldKey("throttle", "", None, 0, began + 60 * SECOND),
    ]
    assert (await store.list_start_keys("order"))[1].run_id == other
    await start(store, "order", "bob")
    assert (await store.list_start_keys("order"))[2] == full
    await clock.advance(1)
    quiet = await start(store, "index", "ann")
    waits = HeldKey("debounce", "ann", quiet, 0, began + 6 * SECOND)
    assert await store.list_start_keys("index") == [waits]
    await clock.advance(5)
    assert await store.list_start_keys("index") == []
    assert await store.list_start_keys("nobody") == []
    with pytest.raises(InvalidInput):
        await store.list_start_keys("order", limit=-1)
