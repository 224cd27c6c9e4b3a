"""Runs that are large: what a page shows of them is small, and so is what it reads."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest

from holdfast.insight.shapes import LARGEST_SHOWN
from holdfast.server import Server, hub
from holdfast.server.access import KeyAccess
from holdfast.server.log_pages import PAGE_BYTES
from holdfast.server.run_logs import MOST_BYTES, cut, logs_of
from holdfast.store.port import Store
from holdfast.types import ClippedEvent, Event
from tests.server.shop import HOST, KEY, Api, app
from tests.server.test_attach import attached
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


async def test_a_page_of_a_log_ends_after_4_mib_of_details(api: Api) -> None:
    """However many entries of whatever size are asked for; the pages together have all."""
    run_id = await api.start()
    for _ in range(12):
        await api.ask("POST", f"/v1/runs/{run_id}/signals/go", "x" * 900_000)
    path, after = f"/v1/runs/{run_id}/events?limit=200&clip=1048576", -1
    seen: list[int] = []
    while after is not None:
        answer = await api.http.get(f"{path}&after={after}")
        assert len(answer.content) < PAGE_BYTES + 1024 * 1024
        page = answer.json()
        seen += [each["idx"] for each in page["events"]]
        after = page["next"]
    assert seen == list(range(13))


async def test_edge_20_a_long_log_is_followed_in_parts(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its beginning and from its middle, also while others follow what happens now."""
    connection = await asyncpg.connect(database_url)
    server = Server(database_url, auth=KeyAccess(KEY), app=app, hosts=[HOST], stream_seconds=300)
    headers = {"Authorization": f"Bearer {KEY}"}
    transport = httpx.ASGITransport(server)
    async with (
        server,
        httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}", headers=headers) as http,
    ):
        api = Api(http)
        run_id, other = await api.start(1), await api.start(2)
        await connection.execute(FILL, run_id)
        sizes = list[tuple[int, int]]()
        read_tails = server.site.store.read_tails

        async def counted(*given: Any, **bounds: Any) -> list[list[ClippedEvent]]:
            tails = await read_tails(*given, **bounds)
            details = [len(each.event.details or "") for tail in tails for each in tail]
            sizes.append((len(details), sum(details)))
            return tails

        async def whole(*_: object) -> None:
            raise AssertionError("a whole log was read")

        monkeypatch.setattr(server.site.store, "read_tails", counted)
        monkeypatch.setattr(server.site.store, "read_events", whole)
        monkeypatch.setattr(server.site.reader.runs, "log", whole)
        path = f"/v1/runs/{run_id}/attach"
        async with (
            attached(server, path) as first,
            attached(server, f"{path}?after=148") as middle,
            attached(server, f"/v1/runs/{other}/attach") as beside,
        ):
            assert [await each.begin() for each in (first, middle, beside)] == [200] * 3
            await beside.event()
            await api.ask("POST", f"/v1/runs/{other}/signals/go")  # the others do not read
            assert (await beside.event() or ("",))[:2] == ("SignalReceived", "1")
            for stream, begins in ((first, 0), (middle, 149)):
                for idx in range(begins, EVENTS):
                    event = await stream.event()
                    assert event is not None
                    assert event[1] == str(idx)
                    if idx == 150:
                        assert event[2]["details"] is None
                        assert event[2]["details_bytes"] > LARGE
            await api.ask("POST", f"/v1/runs/{run_id}/terminate")
            for stream in (first, middle):
                assert [each[1] for each in await stream.rest()] == [str(EVENTS), "end"]
    assert max(events for events, _ in sizes) <= hub.MOST_EVENTS
    assert max(size for _, size in sizes) <= hub.MOST_BYTES + LARGEST_SHOWN
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


async def test_what_is_kept_of_a_run_with_large_values_is_small(
    api: Api, server: Server, store: Store
) -> None:
    """Whichever page or operation reads its log: 40 values of a megabyte, 600 of 60 kB."""
    run_id = await api.start()
    for size in [900_000] * 40 + [60_000] * 600:
        await server.site.client.signal(UUID(run_id), "go", "x" * size)
    steps, timeline, children, page = [
        await api.http.get(path)
        for path in (
            f"/v1/runs/{run_id}/steps",
            f"/v1/runs/{run_id}/timeline?folded=false&limit=200&after=500",
            f"/v1/runs/{run_id}/children",
            f"/login?key={KEY}&next=/runs/{run_id}",
        )
    ]
    assert [each.status_code for each in (steps, timeline, children)] == [200] * 3
    assert page.status_code in (200, 303)
    log = await logs_of(server.site).read(UUID(run_id))
    assert len(log.events) == 641
    assert sum(len(each.details or "") for each in log.events) < MOST_BYTES + 2_000_000
    assert len(timeline.json()["spans"]) == 140  # of 641
    assert len(timeline.content) < MOST_BYTES + 4_000_000


def test_a_cut_event_keeps_what_is_small_and_the_kind_of_an_error() -> None:
    error = {"kind": "builtins.ValueError", "message": "no " * 9_000, "traceback": "t" * 9_000}
    details = json.dumps({"attempt": 3, "result": "x" * 5_000, "error": error})
    event = Event("StepFailed", "a", details, 1)
    found = json.loads(cut(event, 1_000).details or "")
    assert found["attempt"] == 3
    assert found["result"].startswith('"xxx')
    assert found["error"]["kind"] == "builtins.ValueError"
    assert len(json.dumps(found)) < 1_500
    assert cut(event, 100_000) is event
