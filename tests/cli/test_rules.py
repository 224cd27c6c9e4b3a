"""`holdfast rules`."""

from __future__ import annotations

import psycopg

from holdfast import App, Context, Singleton, SyncClient
from tests.cli.conftest import CommandLine

app = App("shop")


@app.workflow(singleton=Singleton(key="input.customer", on_conflict="queue"))
async def sync(ctx: Context, order: dict[str, str]) -> None: ...


def test_rules_say_what_they_hold(cli: CommandLine) -> None:
    assert "no rule of shop/sync holds a start now" in cli("rules", "shop/sync").stderr
    with SyncClient(cli.url, app=app) as client:
        first, _ = [client.start(sync, {"customer": "ann"}) for _ in range(2)]
    shown = cli("rules", "shop/sync").stdout
    assert shown == f"singleton  key 'ann': run {first.run_id} is active, 1 wait for its end\n"
    [held] = cli.json("rules", "shop/sync")
    assert (held["rule"], held["key"], held["waiting"]) == ("singleton", "ann", 1)
    with psycopg.connect(cli.url) as connection:
        connection.execute(
            "insert into holdfast.start_rules (name, version, throttle_limit, "
            "throttle_period_seconds, throttle_excess) values ('shop/mail', 1, 1, 60, 'refuse'); "
            "select holdfast.start_run('shop/mail')"
        )
    assert "throttle   all starts: no further run begins before" in cli("rules", "shop/mail").stdout
