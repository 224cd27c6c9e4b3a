"""What a worker counts by minute, and when it is sent."""

from __future__ import annotations

from holdfast import App, Context, Retry
from holdfast.testing import Environment
from holdfast.types.stats import BEGUN, BUCKETS, COUNTS, ENDED, MILLIS, RETRIES
from holdfast.worker.statistics import Statistics

MINUTE = 60_000_000

app = App("shop")


@app.step(retry=Retry(attempts=2, base="2s", jitter=0))
async def flaky(tries: list[int]) -> None:
    raise ValueError("no")


@app.workflow
async def fail(ctx: Context) -> None:
    await flaky([])


line = app.flow("line", input=int)


@line.step
async def only(run: int) -> int:
    return run


@app.workflow
async def succeed(ctx: Context) -> None:
    return None


async def test_runs_are_counted_by_minute_and_sent_when_the_worker_stops() -> None:
    async with Environment(app) as env:
        store = env.store
        for workflow in (succeed, succeed, fail):
            await env.client.start(workflow)
        await env.client.start("line", 1)
        await env.advance("5s")
    rows = {row.name: row.counts for row in await store.read_stats(since=0)}
    assert rows["shop/succeed"][BEGUN] == rows["shop/succeed"][ENDED["completed"]] == 2
    assert rows["shop/line"][ENDED["completed"]] == sum(rows["shop/line"][BUCKETS:]) == 1
    failed = rows["shop/fail"]
    assert failed[ENDED["failed"]] == failed[RETRIES] == 1
    assert sum(failed[BUCKETS:]) == 1
    assert 1_000 < failed[MILLIS] < 4_000


async def test_forks_and_retries_last_from_when_they_began_themselves() -> None:
    """Their code has the clock of their origin. Their ends are counted by workers and outside."""
    async with Environment(app) as env:
        runs = env.client.runs
        origin = (await env.client.start(fail)).run_id
        await env.advance("1h")
        await runs.retry(origin)
        stopped = await runs.fork(origin, index=1)
        await env.advance("1s")
        await stopped.terminate()
        await env.advance("10s")
        await runs.fork(origin)
        await env.advance("1h")
    rows = await env.store.read_stats(since=0, names=["shop/fail"])
    counts = [sum(each) for each in zip(*(row.counts for row in rows), strict=True)]
    assert (counts[ENDED["failed"]], counts[ENDED["terminated"]]) == (3, 1)
    assert counts[MILLIS] < 60_000


def test_what_could_not_be_sent_is_counted_again_up_to_a_limit() -> None:
    now = MINUTE
    statistics = Statistics("shop", lambda: now)
    statistics.run_ended("fail", "failed", now, 5_000_000)
    taken = statistics.take()
    assert not statistics.waiting
    assert statistics.take() == []
    now += MINUTE
    statistics.run_ended("fail", "failed", now, 5_000_000)
    statistics.give_back(taken)
    again = {each.minute: each.counts for each in statistics.take()}
    assert again == {MINUTE: taken[0].counts, 2 * MINUTE: taken[0].counts}
    for number in range(6_000):
        statistics.run_ended(f"w{number}", "completed", now, 1)
    kept = statistics.take()
    assert len(kept) == 5_000
    assert all(len(each.counts) == COUNTS for each in kept)
