"""`holdfast alerts`."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from holdfast.cli import exits
from holdfast.store.postgres import PostgresStore
from holdfast.types import AlertRule
from tests.cli.conftest import CommandLine

NOBODY = AlertRule(name="nobody works", kind="no_worker", subject="mail", threshold=1, topic="ops")
LATE = AlertRule(
    name="late", kind="backlog", subject="mail", threshold=300, topic="ops", lasting_seconds=60
)


def declare(url: str, *rules: AlertRule) -> None:
    """Do as a worker that starts and looks."""

    async def work() -> None:
        store = PostgresStore(url)
        await store.open()
        await store.declare_alerts("shop", rules)
        if len(rules) > 1:
            await store.look_at_alerts()
        await store.close()

    asyncio.run(work())


def test_alerts_are_listed(cli: CommandLine) -> None:
    assert "no alerts" in cli("alerts", "list").stderr
    declare(cli.url, LATE)
    assert "no worker has looked yet" in " ".join(cli("alerts", "list").stdout.split())
    assert "no alert is active" in cli("alerts", "list", "--active", code=exits.FAILED).stderr
    assert "1 alert; none is active" in cli("doctor").stdout
    declare(cli.url, LATE, NOBODY)
    shown = [" ".join(line.split()) for line in cli("alerts", "list").stdout.splitlines()]
    assert "ACTIVE" in "".join(shown)
    assert "nobody works" in "".join(shown)
    [active] = cli.json("alerts", "list", "--active")
    assert (active["rule"]["name"], active["is_active"]) == ("nobody works", True)
    assert active["value"] == 0
    assert datetime.fromisoformat(active["changed_at"]) <= datetime.now(UTC)
    assert "nobody works (shop): began" in " ".join(cli("doctor").stdout.split())
