"""Limits as programs declare them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Ageing, App, Context, Fairness, Limit, Rate
from holdfast.errors import ConfigurationError


async def buy(ctx: Context, order: dict[str, Any]) -> None:
    """Do nothing."""


async def charge(account: str, order: dict[str, Any]) -> None:
    """Do nothing."""


def test_an_app_knows_all_limits_that_it_declares() -> None:
    app = App("shop")
    app.workflow(concurrency=Limit(1, key="input.customer"), rate=Rate(10, per="1m"))(buy)
    app.activity(concurrency=3)(charge)
    app.queue("mail", concurrency=[Limit(9), Limit(2, key="input")], fairness="input.tenant")
    app.queue("slow", ageing=Ageing("5m"))
    found = [(rule.scope, rule.name, rule.kind, rule.most, rule.key) for rule in app.limits]
    assert found == [
        ("workflow", "shop/buy", "concurrency", 1, "input.customer"),
        ("workflow", "shop/buy", "rate", 10, ""),
        ("activity", "shop/charge", "concurrency", 3, ""),
        ("queue", "mail", "concurrency", 9, ""),
        ("queue", "mail", "concurrency", 2, "input"),
        ("queue", "mail", "fairness", None, "input.tenant"),
        ("queue", "slow", "ageing", None, ""),
    ]
    assert [rule.period_seconds for rule in app.limits if rule.period_seconds] == [60, 300]


def test_the_limits_of_the_highest_version_count() -> None:
    app = App("shop")
    app.workflow(concurrency=2, version=2, name="buy")(buy)
    app.workflow(concurrency=1, version=1, name="buy")(buy)
    assert [rule.most for rule in app.limits] == [2]


def test_the_key_of_an_activity_is_one_of_its_parameters() -> None:
    """A call gives it by its name or by its place."""
    app = App("shop")
    app.activity(concurrency=Limit(1, key="input.order.id"))(charge)
    [rule] = app.limits
    assert rule.key == "input.1.order.id|input.0.1.id"
    with pytest.raises(ConfigurationError, match=r"shop/pay: it has account, order"):
        app.activity(name="pay", concurrency=Limit(1, key="input.customer"))(charge)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Limit(0), "at least 1 must run"),
        (lambda: Limit(True), "at least 1 must run"),
        (lambda: Limit(1, key="customer"), "not a path into the input"),
        (lambda: Limit(1, holds="lease"), 'holds is "turn" or "run"'),  # type: ignore[arg-type]
        (lambda: Rate(1, per=0), "a period is from 0.001 s"),
        (lambda: Rate(1, per="soon"), "Rate: per"),
        (lambda: Fairness(""), "is not a path into the input"),
        (lambda: Ageing("0s"), "a period is from 0.001 s"),
        (lambda: App("a").workflow(concurrency="5")(buy), "expected a Limit"),  # type: ignore[arg-type]
        (lambda: App("a").workflow(rate=[5])(buy), "expected a Rate"),  # type: ignore[list-item]
        (lambda: App("a").workflow(concurrency=[Limit(1), Limit(2)])(buy), "contradict"),
        (lambda: App("a").activity(concurrency=Limit(1, holds="run"))(charge), "not runs"),
        (lambda: App("a").queue("no queue"), "no queue"),
    ],
)
def test_a_limit_that_cannot_be_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_the_limits_of_a_queue_are_declared_once() -> None:
    app = App("shop")
    app.queue("mail", concurrency=1)
    with pytest.raises(ConfigurationError, match="declared twice"):
        app.queue("mail", rate=Rate(1, per="1s"))
