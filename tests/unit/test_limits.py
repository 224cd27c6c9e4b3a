"""Limits as programs declare them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import Ageing, App, Context, Fairness, Limit, Rate
from holdfast.errors import ConfigurationError
from holdfast.insight.limits import holding, wait_text
from holdfast.types import LimitWait


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
    assert rule.key == "input.k.order.id|input.a.1.id|input.1.id"
    with pytest.raises(ConfigurationError, match=r"shop/pay: it has account, order"):
        app.activity(name="pay", concurrency=Limit(1, key="input.customer"))(charge)


async def ask(prompt: str, *, most: int = 100) -> None:
    """Do nothing."""


def tokens(prompt: str, *, most: int = 100) -> float:
    """Return how many units a call uses."""
    return len(prompt) / 4 + most


def test_a_rate_may_count_units() -> None:
    """Beside one of tasks with the same key. An activity's path is one of its parameters."""
    app = App("shop")
    rates = [Rate(50, per="1m"), Rate(9_000, per="1m", units=tokens)]
    app.activity(rate=rates)(ask)
    app.activity(name="by-path", rate=Rate(9_000, per="1m", units="input.most"))(ask)
    app.queue("mail", rate=Rate(9_000, per="1m", units="input.tokens"))
    found = [(rule.name, rule.kind, rule.units) for rule in app.limits]
    assert found == [
        ("shop/ask", "rate", None),
        ("shop/ask", "units", "call"),
        ("shop/by-path", "units", "input.k.most"),
        ("mail", "units", "input.tokens"),
    ]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Limit(0), "most: a whole number from 1"),
        (lambda: Limit(True), "most: a whole number from 1"),
        (lambda: Limit(1, key="customer"), "not a path into the input"),
        (lambda: Limit(1, holds="lease"), 'holds is "turn" or "run"'),  # type: ignore[arg-type]
        (lambda: Rate(1, per=0), "a period is from 0.001 s"),
        (lambda: Rate(1, per="soon"), "Rate: per"),
        (lambda: Rate(1, per=1, units="tokens"), "Rate: units: 'tokens' is not a path"),
        (lambda: Rate(1, per=1, units="input.a", smooth=True), "cannot be smooth"),
        (lambda: App("a").workflow(rate=Rate(1, per=1, units=tokens))(buy), "a path into the"),
        (lambda: App("a").queue("q", rate=Rate(1, per=1, units="call")), "a path into the"),
        (lambda: App("a").activity(rate=Rate(1, per=1, units="input.x"))(ask), "no parameter"),
        (
            lambda: App("a").activity(
                rate=[Rate(1, 1, units=tokens), Rate(1, 1, "input.prompt", units=len)]
            )(ask),
            "two functions count",
        ),
        (lambda: Fairness(""), "is not a path into the input"),
        (lambda: Ageing("0s"), "a period is from 0.001 s"),
        (lambda: App("a").workflow(concurrency="5")(buy), "a Limit is needed, not '5'"),  # type: ignore[arg-type]
        (lambda: App("a").workflow(rate=[5])(buy), "rate: a Rate, such as"),  # type: ignore[list-item]
        (lambda: App("a").workflow(concurrency=[Limit(1), Limit(2)])(buy), "contradict"),
        (lambda: App("a").activity(concurrency=Limit(1, holds="run"))(charge), "not runs"),
        (lambda: App("a").queue("q", fairness=1), "queue q: fairness: a path, such as"),  # type: ignore[arg-type]
        (lambda: App("a").queue("q", fairness="x"), "queue q: fairness: Fairness: key: 'x'"),
        (lambda: App("a").queue("q", ageing="1m"), "queue q: ageing: an Ageing is needed"),  # type: ignore[arg-type]
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


def test_a_wait_for_units_says_how_many_are_needed_and_free() -> None:
    now = 1_767_225_600_000_000
    rule = Rate(9_000, per="1m", key="input.customer", units="input.tokens").rule("queue", "mail")
    wait = LimitWait(
        task_key="",
        waits_since=now,
        ahead=0,
        rule=rule,
        slot="ann",
        held=0,
        free=120,
        next_at=now + 3_000_000,
        uses=500,
    )
    assert wait_text(wait, now) == (
        "queue 'mail' uses 9,000 in 1 m for each input.customer, by input.tokens; it uses 500, "
        "and 120 are free for 'ann': it can begin in 3.0 s"
    )
    assert holding([wait]) == [wait]
    assert holding([replace(wait, free=500)]) == []
