"""Alerts as programs have them: declared in code, told to a workflow, listed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import App, Context
from holdfast.client import Client
from holdfast.definitions import Condition, backlog, failed, no_worker, slow, stuck
from holdfast.errors import ConfigurationError, HoldfastError, InvalidName, RunFailed
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.store.postgres import PostgresStore
from holdfast.types import AlertEvent, AlertRule
from holdfast.worker import Worker, WorkerOptions


def shop(**options: Any) -> tuple[App, list[AlertEvent]]:
    """Return an app with a workflow that fails, and what another one is told of."""
    app, told = App("shop"), list[AlertEvent]()

    @app.workflow
    async def checkout(ctx: Context, fails: bool) -> None:
        if fails:
            raise ValueError("no stock")

    @app.workflow
    async def tell(ctx: Context, alert: AlertEvent) -> None:
        told.append(alert)

    app.alert("checkout fails", when=failed(checkout, 2), topic="ops", **options)
    app.subscribe("ops", tell)
    return app, told


async def test_runs_that_fail_start_the_workflow_that_tells_of_it(
    store: Store, request: pytest.FixtureRequest
) -> None:
    def another() -> Store:
        if isinstance(store, MemoryStore):
            return store
        return PostgresStore(request.getfixturevalue("database_url"), connections=1)

    app, told = shop()
    options = WorkerOptions(heartbeat_seconds=0.1)
    async with Client(store=store, app=app) as client:
        workers = [Worker(app, store, options, heartbeat_store=another) for _ in range(2)]
        for worker in workers:
            await worker.start()
        for _ in range(2):
            handle = await client.start("checkout", True)
            with pytest.raises(RunFailed):
                await handle.result(timeout=60)
        async with asyncio.timeout(60):
            while not told:
                await advance(store)
        [alert] = await client.alerts.list()
        assert (alert.app, alert.rule.subject, alert.is_active) == ("shop", "shop/checkout", True)
        for worker in workers:
            await worker.stop(0)
    assert [(each.active, each.value) for each in told] == [(True, 2.0)]
    assert told[0].text == "checkout fails: 2 runs of shop/checkout failed in 10 m"


async def advance(store: Store) -> None:
    """Let time pass where it does not pass by itself."""
    await asyncio.sleep(0.1)
    if isinstance(store, MemoryStore):
        store.advance(1)


def test_what_an_app_declares() -> None:
    app = App("shop")
    app.alert("a", when=failed())
    app.alert("b", when=failed("other/job", 5, within="1h"), topic="ops", lasting="30s")
    app.alert("c", when=stuck("late", 3))
    app.alert("d", when=backlog(older_than="90s"))
    app.alert("e", when=slow("late", p95="10s"))
    app.alert("f", when=no_worker("mail"))
    app.alert("g", when=no_worker(), lasting=0)

    @app.workflow
    async def late(ctx: Context) -> None: ...

    a, b, c, d, e, f, g = app.alerts
    assert a == AlertRule(
        name="a", kind="failed", subject="", threshold=1, topic="alerts", within_seconds=600
    )
    assert (b.subject, b.threshold, b.topic) == ("other/job", 5, "ops")
    assert (b.within_seconds, b.lasting_seconds) == (3600, 30)
    assert (c.subject, c.threshold, c.within_seconds) == ("shop/late", 3, None)
    assert (d.subject, d.threshold) == ("default", 90)
    assert (e.subject, e.threshold, e.within_seconds) == ("shop/late", 10, 600)
    assert (f.subject, f.lasting_seconds, g.subject, g.lasting_seconds) == (
        "mail",
        60,
        "default",
        0,
    )


def test_an_alert_of_a_workflow_that_the_app_does_not_have_is_refused() -> None:
    app, _ = shop()
    app.alert("typing error", when=failed("chekout"))
    with pytest.raises(ConfigurationError, match=r"alert 'typing error': .*chekout"):
        _ = app.alerts


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (lambda: failed(within="30s"), "from 1 minute to 1 day"),
        (lambda: failed(within="2d"), "from 1 minute to 1 day"),
        (lambda: failed(within="soon"), "failed: within: not a duration"),
        (lambda: failed(count=0), "an alert: count: a whole number from 1"),
        (lambda: failed("no name!"), "no name!"),
        (lambda: stuck(count=True), "an alert: count: a whole number from 1"),
        (lambda: backlog(older_than=0), "backlog: older_than: .*longer time"),
        (lambda: backlog("no name!"), "no name!"),
        (lambda: slow(p95="0s"), "slow: p95: .*longer time"),
        (lambda: no_worker(""), "a queue"),
    ],
)
def test_a_condition_that_cannot_be_is_refused(condition: Any, message: str) -> None:
    with pytest.raises(HoldfastError, match=message):
        condition()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": ""}, "1 to 100 characters"),
        ({"name": "a\nb"}, "in one line"),
        ({"name": 5}, "1 to 100 characters"),
        ({"name": "a" * 101}, "1 to 100 characters"),
        ({"name": "checkout fails"}, "one of this name already"),
        ({"when": "failed"}, "made by failed, stuck"),
        ({"lasting": "-1s"}, "lasting: not a duration"),
    ],
)
def test_an_alert_that_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    app, _ = shop()
    given = {"name": "new", "when": Condition("stuck", "", 1), **options}
    with pytest.raises(ConfigurationError, match=message):
        app.alert(given.pop("name"), **given)
    with pytest.raises(InvalidName, match="is not a topic"):
        app.alert("new", when=stuck(), topic="no topic")
