"""The charts of pages: what became of runs in a span of time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from uuid import UUID

import httpx
import pytest

from holdfast.insight.load import Load, LoadPoint, QueueBacklog, read_load
from holdfast.insight.stats import read_workflow_stats
from holdfast.server import Server
from holdfast.server.access import KeyAccess
from holdfast.server.pages.charts import SPANS, Charts, LoadCharts, draw, draw_load
from holdfast.store.port import Store
from holdfast.types import MinuteCounts, NewRun
from holdfast.types.stats import BEGUN, BUCKETS, COUNTS, ENDED
from holdfast.values.moments import to_micros
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


async def test_a_chart_of_a_day_reaches_back_to_its_beginning(store: Store) -> None:
    """However many workflows there are: a row is read for each of them and each part."""
    now, counts = await store.now(), (1,) * COUNTS
    stats = [
        MinuteCounts(now - ago * MINUTE, f"rest/{name}", counts)
        for ago in range(0, 23 * 60, 2)
        for name in range(30)
    ]
    await store.heartbeat(INFO, [], lease_seconds=30, stats=stats)
    found = await read_workflow_stats(store, since_seconds=SPANS["24h"])
    assert (len(found.workflows), len(found.total.series)) == (30, 60)
    assert found.total.begun == len(stats)


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


async def load(store: Store, span: str = "1h", name: str | None = None) -> LoadCharts:
    found = await read_load(store, since_seconds=SPANS[span], name=name)
    return draw_load(found, to_micros(found.since) + round(found.seconds * 1e6))


async def wait_in(store: Store, *queues: str) -> None:
    """Start runs that nobody serves, and look at them."""
    await store.start_runs([new_run(number, queue) for number, queue in enumerate(queues)])
    await store.heartbeat(INFO, [], lease_seconds=30)
    assert await store.sample_load()


def new_run(number: int, queue: str) -> NewRun:
    return NewRun(run_id=UUID(int=number + 1), name="rest/checkout", queue=queue)


async def test_backlog_and_load_are_drawn_from_samples(store: Store) -> None:
    await wait_in(store, "slow", "slow", "mail")
    drawn = await load(store)
    assert (drawn.is_known, drawn.top_due) == (True, "3 tasks")
    assert drawn.top_places == f"{INFO.concurrency} places"
    assert [each.words for each in drawn.queues] == ["all queues", "slow", "mail"]
    assert [line.words for line in drawn.places] == ["places", "taken"]
    assert all(len(line.parts) == 1 for line in [*drawn.queues, *drawn.places])
    said = [each.text for each in drawn.hits if each.text != "no worker looked"]
    assert (len(drawn.hits), said) == (
        60,
        [f"3 tasks waited; 0 of {INFO.concurrency} places taken; queue slow: 2; queue mail: 1"],
    )


async def test_backlog_of_a_workflow_is_its_own(store: Store) -> None:
    await wait_in(store, "slow", "mail")
    assert (await load(store, name="rest/refund")).top_due == ""
    own = (await load(store, name="rest/checkout")).load
    assert [(each.queue, each.most) for each in own.queues] == [("mail", 1), ("slow", 1)]
    assert [each.due for each in own.points if each.due is not None] == [2]


async def test_only_the_longest_queues_have_a_line_and_all_have_one(store: Store) -> None:
    await wait_in(store, *(f"q-{number % 6}" for number in range(13)))
    drawn = await load(store)
    assert [each.words for each in drawn.queues] == ["all queues", "q-0", "q-1", "q-2", "q-3"]


async def test_charts_say_that_a_queue_was_not_counted_to_its_end() -> None:
    point = LoadPoint(datetime(2026, 1, 1, tzinfo=UTC), 10_000, 3.0, 8.0)
    drawn = draw_load(
        Load(point.at, 3600.0, [point], [QueueBacklog("slow", 10_000, [10_000])]), until=1
    )
    assert drawn.top_due == "10,000 or more tasks"
    assert "10,000 or more tasks waited" in drawn.text


@pytest.mark.parametrize("path", ["/", "/workflow?name=rest%2Fcheckout"])
async def test_pages_show_backlog_and_load_of_each_span(
    store: Store, browser: httpx.AsyncClient, path: str
) -> None:
    more = path + ("&" if "?" in path else "?")
    empty = await browser.get(f"{more}span=24h")
    assert empty.text.count("Not known yet: a worker looks once a minute.") == 2
    await wait_in(store, "slow", "slow", "mail")
    shown = (await browser.get(f"{more}span=7d")).text  # the others are kept for some seconds
    assert "Backlog: tasks that wait for a worker" in shown
    assert "3 tasks waited; 0 of" in shown
    nothing = await browser.get("/workflow?name=rest%2Frefund")
    assert "No task had to wait." in nothing.text


async def test_the_api_answers_with_backlog_and_load(
    store: Store, browser: httpx.AsyncClient
) -> None:
    await wait_in(store, "slow", "mail")
    browser.headers["Authorization"] = f"Bearer {KEY}"
    found = (await browser.get("/v1/load?since=2h")).json()
    assert len(found["points"]) == 60
    known = [each for each in found["points"] if each.pop("at") and each["due"] is not None]
    assert known == [{"due": 2, "busy": 0.0, "places": float(INFO.concurrency)}]
    assert [(each["queue"], each["most"]) for each in found["queues"]] == [("mail", 1), ("slow", 1)]
    assert (await browser.get("/v1/load?since=91d")).status_code == 400
