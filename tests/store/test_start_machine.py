"""Random starts under random rules on both stores, which must agree."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from machine_runs import CUSTOMERS, NAMES, WorkAgrees, given
from msgspec.structs import replace
from seeded import act, run_seeds, some

from holdfast.store.port import Store
from holdfast.types import DeclaredRules, NewRun, RulesOfStart, StartRules


def draw_rules(chance: Random) -> StartRules | None:
    """Draw a rule, or several that can be combined."""
    key = chance.choice([None, "input.customer"])
    drawn = StartRules()
    for kind in chance.choice(["", "s", "s", "d", "d", "t", "t", "st", "dt", "sd", "sdt"]):
        if kind == "s":
            conflict = chance.choice(["refuse", "return", "queue"])
            drawn = replace(drawn, singleton_conflict=conflict, singleton_key=key)
        elif kind == "d":
            longest = chance.choice([None, 5.0])
            drawn = replace(
                drawn, debounce_seconds=3.0, debounce_key=key, debounce_max_wait_seconds=longest
            )
        else:
            drawn = replace(
                drawn,
                throttle_limit=chance.randint(1, 3),
                throttle_period_seconds=chance.choice([4.0, 4.0, 9.0]),
                throttle_key=chance.choice([None, "input.customer"]),
                throttle_excess=chance.choice(["delay", "refuse"]),
            )
    return None if drawn == StartRules() else drawn


class RulesAgree(WorkAgrees):
    """Declares rules for starts, and starts many runs with the same keys."""

    version = 0

    def begin(self, chance: Random) -> None:
        """Begin with rules."""
        self.declare(draw_rules(chance))

    @act(rules=draw_rules)
    def declare(self, rules: StartRules | None) -> None:
        """Declare the rules of a workflow again."""
        self.version += 1
        declared = [DeclaredRules(NAMES[0], self.version, rules)]
        self.do(lambda store: store.declare_start_rules(declared))

    @act(
        weight=5, customers=some(CUSTOMERS, 1, 3), delay=(None, None, 2.0), own=(None,) * 9 + (1, 3)
    )
    def start(self, customers: list[str], delay: float | None, own: int | None) -> None:
        """Start runs, together; perhaps with a throttle of their own."""
        throttle = {
            "throttle_limit": own,
            "throttle_period_seconds": 2.0,
            "throttle_excess": "refuse",
        }
        brought = None if own is None else msgspec.json.encode(RulesOfStart(given=throttle))
        runs = [
            NewRun(
                run_id=self.new_id(),
                name=NAMES[0],
                input=given(customer),
                delay_seconds=delay,
                rules=None if brought is None else brought.decode(),
            )
            for customer in customers
        ]
        self.do(lambda store: store.start_runs(runs))

    @act()
    def maintain(self) -> None:
        """Do what maintenance does."""
        self.do(lambda store: store.expire_start_keys())
        self.do(lambda store: store.free_singletons())

    def check(self) -> None:
        """Compare who holds which key, and who waits for it."""
        super().check()

        async def held(store: Store) -> Any:
            keys = await store.list_start_keys(NAMES[0])
            waits = [await store.start_wait(run_id) for run_id in self.ids[-4:]]
            return keys, await store.list_start_rules(), waits

        self.both(held)


@pytest.mark.timeout(600)
def test_both_stores_heed_rules_for_starts_alike_whatever_is_asked(
    module_database_url: str,
) -> None:
    run_seeds(RulesAgree, module_database_url, seeds=30, steps=40)
