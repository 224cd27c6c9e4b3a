"""Random starts under random rules on both stores, which must agree."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from agreement import run_machine
from hypothesis.stateful import initialize, invariant, rule
from machine_runs import CUSTOMERS, NAMES, WorkAgrees, given

from holdfast.store.port import Store
from holdfast.types import DeclaredRules, NewRun, StartRules

RULES = st.sampled_from(
    [
        None,
        *(
            StartRules(singleton_conflict=conflict, singleton_key=key)  # type: ignore[arg-type]
            for conflict in ("refuse", "return", "queue")
            for key in (None, "input.customer")
        ),
        StartRules(debounce_seconds=3.0, debounce_key="input.customer"),
        StartRules(debounce_seconds=3.0, debounce_max_wait_seconds=5.0),
        StartRules(throttle_limit=2, throttle_period_seconds=4.0, throttle_excess="refuse"),
        StartRules(
            throttle_limit=2,
            throttle_period_seconds=4.0,
            throttle_key="input.customer",
            throttle_excess="delay",
        ),
    ]
)


class RulesAgree(WorkAgrees):
    """Declares rules for starts, and starts many runs with the same keys."""

    version = 0

    @initialize(rules=RULES)
    def begin(self, rules: StartRules | None) -> None:
        """Begin with rules."""
        self.declare(rules)

    @rule(rules=RULES)
    def declare(self, rules: StartRules | None) -> None:
        """Declare the rules of a workflow again."""
        self.version += 1
        declared = [DeclaredRules(NAMES[0], self.version, rules)]
        self.do(lambda store: store.declare_start_rules(declared))

    @rule(customers=st.lists(CUSTOMERS, min_size=1, max_size=3), delay=st.sampled_from([None, 2.0]))
    def start(self, customers: list[str], delay: float | None) -> None:
        """Start runs, together."""
        runs = [
            NewRun(run_id=self.new_id(), name=NAMES[0], input=given(customer), delay_seconds=delay)
            for customer in customers
        ]
        self.do(lambda store: store.start_runs(runs))

    @rule()
    def maintain(self) -> None:
        """Do what maintenance does."""
        self.do(lambda store: store.expire_start_keys())
        self.do(lambda store: store.free_singletons())

    @invariant()
    def every_key_is_held_alike(self) -> None:
        """Compare who holds which key, and who waits for it."""

        async def held(store: Store) -> Any:
            keys = await store.list_start_keys(NAMES[0])
            waits = [await store.start_wait(run_id) for run_id in self.ids[-4:]]
            return keys, await store.list_start_rules(), waits

        self.both(held)


@pytest.mark.timeout(600)  # a failure is reduced to the fewest steps, which takes its time
def test_both_stores_heed_rules_for_starts_alike_whatever_is_asked(
    module_database_url: str,
) -> None:
    run_machine(RulesAgree, module_database_url, examples=25, steps=30)
