"""The charts of pages: what became of runs in a span of time."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from holdfast.insight.stats import read_workflow_stats
from holdfast.moments import to_micros
from holdfast.server import Server
from holdfast.server.access import KeyAccess
from holdfast.server.pages.charts import SPANS, Charts, draw
from holdfast.store.port import Store
from holdfast.types import MinuteCounts
from holdfast.types.stats import BEGUN, BUCKETS, COUNTS, ENDED
from tests.server.desk import app
from tests.server.shop import HOST, KEY
from tests.server.test_metrics import INFO

MINUTE = 60_000_000


def counted(minute: int, begun: int, completed: int, failed: int, bucket: int) -> MinuteCounts:
    counts = [0] * COUNTS
    counts[BEGUN], counts[ENDED["completed"]], counts[ENDED["failed"]] = begun, completed, failed
    counts[BUCKETS + bucket] = completed + failed
    return MinuteCounts(minute, "rest/checkout", tuple(counts))


async def write(store: Store, *rows: MinuteCounts) -> int:
    """Write rows whose minutes are so many minutes ago; return the moment that they count from."""
    now = await store.now()
    moved = [MinuteCounts(now - row.minute * MINUTE, row.name, row.counts) for row in rows]
    await store.heartbeat(INFO, [], lease_seconds=30, stats=moved)
    return now


async def charts(store: Store, span: str = "1h") -> Charts:
    stats = await read_workflow_stats(store, since_seconds=SPANS[span])
    return draw(stats.total, span, to_micros(stats.since) + round(stats.seconds * 1e6))


async def test_a_chart_has_a_bar_for_each_part_of_the_time(store: Store) -> None:
    await write(store, counted(10, 8, 6, 2, 3), counted(20, 4, 4, 0, 3))
    drawn = await charts(store)
    assert len(drawn.bars) == len(drawn.stats.series) == 60
    assert [each.ended for each in drawn.bars if each.ended] == [60.0, 120.0]
    assert [each.failed for each in drawn.bars if each.failed] == [30.0]
    assert "8 began, 8 ended, 2 failed; p50 ≈ " in drawn.bars[49].text
    assert drawn.top_rate == "8/min"
    assert drawn.text.startswith("12 runs began, 12 ended, 16.7 % failed; p50 about ")


async def test_a_line_of_a_chart_ends_where_no_run_ended(store: Store) -> None:
    await write(store, *(counted(ago, 1, 1, 0, 3) for ago in (10, 11, 12, 30)))
    drawn = await charts(store)
    assert [len(each.split()) for each in drawn.p95] == [2, 3]  # a lone point is drawn as a dash
    assert len(drawn.begun) == 1


async def test_a_chart_without_runs_is_drawn(store: Store) -> None:
    drawn = await charts(store)
    assert (drawn.begun, drawn.p50, drawn.p95, drawn.top_length) == ([], [], [], "")
    assert not any(each.ended for each in drawn.bars)


@pytest.mark.parametrize(("span", "parts", "minutes"), [("1h", 60, 1), ("24h", 60, 24)])
async def test_a_span_is_cut_into_parts(store: Store, span: str, parts: int, minutes: int) -> None:
    drawn = await charts(store, span)
    assert len(drawn.stats.series) == parts
    assert (drawn.stats.series[1].at - drawn.stats.series[0].at).total_seconds() == 60 * minutes


async def test_a_week_is_cut_into_whole_hours(store: Store) -> None:
    """Minutes are kept as hours after two days: a part must not have half an hour more."""
    points = (await charts(store, "7d")).stats.series
    assert {each.at.minute for each in points} == {0}
    assert (points[1].at - points[0].at).total_seconds() == 3 * 3600


@pytest.fixture
async def browser(store: Store) -> AsyncIterator[httpx.AsyncClient]:
    """Provide a browser that is logged in."""
    async with Server(store=store, auth=KeyAccess(KEY), app=app, hosts=[HOST]) as server:
        transport = httpx.ASGITransport(server)
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as client:
            await client.get(f"/login?key={KEY}")
            yield client


@pytest.mark.parametrize("path", ["/", "/workflow?name=rest%2Fcheckout"])
async def test_pages_have_charts_of_each_span(
    store: Store, browser: httpx.AsyncClient, path: str
) -> None:
    await write(store, counted(2, 3, 2, 1, 3), counted(60 * 5, 5, 5, 0, 3))
    assert "3 runs began" in (await browser.get(path)).text
    more = path + ("&" if "?" in path else "?")
    for span, begun in (("1h", 3), ("24h", 8), ("7d", 8)):
        shown = await browser.get(f"{more}span={span}")
        assert shown.status_code == 200
        assert f"{begun} runs began" in shown.text
        assert f'aria-current="true">{span}</a>' in shown.text
    wrong = await browser.get(f"{more}span=1y")
    assert (wrong.status_code, "span is one of 1h, 24h, 7d" in wrong.text) == (400, True)


async def test_charts_of_a_workflow_have_its_runs_alone(
    store: Store, browser: httpx.AsyncClient
) -> None:
    await write(store, counted(2, 3, 3, 0, 3))
    shown = await browser.get("/workflow?name=rest%2Frefund")
    assert "0 runs began" in shown.text
    assert "No run began or ended." in shown.text
