"""Runs that are large: what a page shows of them is small, and so is what it reads."""

from __future__ import annotations

from typing import Any

import asyncpg

from tests.server.shop import KEY
from tests.server.test_database import on_database

EVENTS = 10_000
LARGE = 16 * 1024 * 1024

FILL = f"""
    insert into holdfast.events (run_id, idx, event_type, key, details, at)
    select $1, n, 'StepCompleted', 'tick#' || n,
        case when n = 150 then json_build_object('result', repeat('x', {LARGE}))
            else json_build_object('result', n) end, now()
    from generate_series(1, {EVENTS - 1}) as n
"""


async def test_edge_20_a_log_of_10000_events_with_one_of_16_mb(database_url: str) -> None:
    """Each page of it is small, and the large event is there to be loaded."""
    connection = await asyncpg.connect(database_url)
    async with on_database(database_url) as api:
        run_id = await api.start()
        await connection.execute(FILL, run_id)
        path, after = f"/v1/runs/{run_id}/events", -1
        seen: list[dict[str, Any]] = []
        for _ in range(EVENTS // 200):
            answer = await api.http.get(f"{path}?after={after}&limit=200&clip=2048")
            assert len(answer.content) < 100_000
            page = answer.json()
            seen += page["events"]
            after = page["next"]
        assert after is None
        assert [each["idx"] for each in seen] == list(range(EVENTS))
        assert seen[150]["details"] is None
        assert seen[150]["details_bytes"] > LARGE
        await api.http.get(f"/login?key={KEY}&next=/runs")
        log = await api.http.get(f"/runs/{run_id}?tab=log")
        assert log.status_code == 200
        assert len(log.content) < 150_000
        timeline = await api.http.get(f"/runs/{run_id}")
        assert len(timeline.content) < 100_000
        whole = await api.http.get(f"/runs/{run_id}/download/150")
        assert len(whole.content) > LARGE
    await connection.close()


async def test_edge_20_a_list_has_no_inputs(database_url: str) -> None:
    """Nor has the run itself one of 16 MB: it is loaded alone."""
    connection = await asyncpg.connect(database_url)
    async with on_database(database_url) as api:
        run_ids = [await api.start(number) for number in range(3)]
        await connection.execute(f"update holdfast.runs set input = to_json(repeat('x', {LARGE}))")
        for path in ("/v1/runs?limit=200", f"/v1/runs/{run_ids[0]}"):
            answer = await api.http.get(path)
            assert answer.status_code == 200
            assert len(answer.content) < 10_000
        assert (await api.ask("GET", f"/v1/runs/{run_ids[0]}"))["input_bytes"] == LARGE + 2
        whole = await api.http.get(f"/v1/runs/{run_ids[0]}/input")
        assert len(whole.content) == LARGE + 2
    await connection.close()
