"""T6. Schedules in a worker: what fires, what a run sees of its tick, what waits for its run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from holdfast import App, Context, current_flow_step, current_message, current_step
from holdfast.testing import Environment
from holdfast.types import NewSchedule, Overlap, RunFilter, RunTarget, TickPolicy, When, tick_text
from holdfast.values.moments import to_micros

START = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def every_minute(
    target: RunTarget, *, name: str = "shop/n", overlap: Overlap = "skip", cron: str | None = None
) -> NewSchedule:
    return NewSchedule(
        name=name,
        when=When(cron="* * * * *" if cron is None else cron),
        target=target,
        policy=TickPolicy(overlap=overlap),
    )


async def outputs(env: Environment) -> list[object]:
    """Return the outputs of all runs that have ended, oldest first."""
    page = await env.client.runs.list(limit=100, payloads=True)
    return [run.output for run in reversed(page.runs) if run.status == "completed"]


async def test_a_run_sees_its_tick_also_on_replay() -> None:
    """Environments replay each run when it wakes. Its steps and its children see the tick, too."""
    app = App("shop")

    @app.step
    async def look() -> str:
        return str(current_step().scheduled_at)

    @app.workflow
    async def child(ctx: Context) -> str:
        return str(ctx.scheduled_at)

    @app.workflow
    async def report(ctx: Context) -> list[str]:
        before = ctx.scheduled_at
        await ctx.sleep("5s")
        return [str(before), str(ctx.scheduled_at), await look(), await child()]

    async with Environment(app) as env:
        await env.store.create_schedule(every_minute(RunTarget(name="shop/report")))
        await env.advance("70s")
        [run] = (await env.client.runs.list(names=["report"], payloads=True)).runs
        assert run.output == [str(START + MINUTE)] * 4
        assert await env.run(report) == ["None"] * 4


async def test_steps_of_flows_see_the_tick() -> None:
    app = App("shop")
    flow = app.flow("report", input=int)

    @flow.step
    async def look(run: int) -> str:
        return str(current_flow_step().scheduled_at)

    async with Environment(app) as env:
        await env.store.create_schedule(
            every_minute(RunTarget(kind="flow", name="shop/report", input="7"))
        )
        await env.advance("70s")
        [run] = (await env.client.runs.list(payloads=True)).runs
        assert (run.status, run.output) == ("completed", {"look": str(START + MINUTE)})


async def test_a_fork_sees_the_tick() -> None:
    app = App("shop")

    @app.workflow
    async def report(ctx: Context) -> str:
        return str(ctx.scheduled_at)

    async with Environment(app) as env:
        await env.store.create_schedule(every_minute(RunTarget(name="shop/report")))
        await env.advance("70s")
        [run] = (await env.client.runs.list(payloads=True)).runs
        fork = await env.client.runs.fork(run.run_id)
        assert await env.result(fork) == str(START + MINUTE)


async def test_schedules_of_the_code_fire() -> None:
    """They are in the database when the worker has started."""
    app = App("shop")
    seen: set[datetime | None] = set()

    @app.schedule("*/2 * * * *")
    @app.workflow
    async def report(ctx: Context) -> None:
        seen.add(ctx.scheduled_at)

    async with Environment(app) as env:
        await env.advance("5m")
    assert seen == {START + 2 * MINUTE, START + 4 * MINUTE}


async def test_schedules_of_the_code_publish_and_send() -> None:
    """T6. What is subscribed starts, and consumers get the messages: once a tick, at once."""
    app = App("shop")
    events: set[str] = set()
    messages: list[tuple[object, str]] = []

    @app.workflow
    async def react(ctx: Context, kind: str) -> None:
        events.add(f"{kind} {ctx.headers['holdfast-event']}")

    @app.consumer("polls")
    async def poll(kind: str) -> None:
        messages.append((kind, current_message().headers["holdfast-scheduled-at"]))

    app.subscribe("clock.*", react)
    app.schedule("*/2 * * * *", topic="clock.two", input="full")
    app.schedule("*/2 * * * *", message_queue="polls", input="short")
    async with Environment(app) as env:
        await env.client.queues.create("polls")
        await env.advance("5m")
        ticks = [tick_text(to_micros(START + minutes * MINUTE)) for minutes in (2, 4)]
        assert events == {f"full shop/clock.two@{tick}" for tick in ticks}
        assert messages == [("short", tick) for tick in ticks]
        assert {each.outcome for each in await env.client.schedules.ticks("polls")} == {"sent"}


async def test_a_buffered_tick_starts_when_the_run_has_ended() -> None:
    app = App("shop")

    @app.workflow
    async def slow(ctx: Context) -> str:
        began = ctx.now()
        await ctx.sleep("90s")
        return str(began)

    async with Environment(app) as env:
        new = every_minute(RunTarget(name="shop/slow"), overlap="buffer_one")
        await env.store.create_schedule(new)
        await env.advance("4m")
        began = await outputs(env)
    assert began == [str(START + MINUTE), str(START + MINUTE + timedelta(seconds=90))]


async def test_a_bad_expression_does_not_hold_up_others() -> None:
    app = App("shop")

    @app.workflow
    async def report(ctx: Context) -> str:
        return "done"

    async with Environment(app) as env:
        target = RunTarget(name="shop/report")
        await env.store.create_schedule(every_minute(target, name="shop/bad", cron="at dawn"))
        await env.store.create_schedule(every_minute(target))
        await env.advance("65s")
        assert await outputs(env) == ["done"]
        bad = await env.store.get_schedule("shop/bad")
        assert bad is not None
        assert bad.error is not None
        assert "at dawn" in bad.error


async def test_runs_of_a_workflow_that_no_worker_has_wait() -> None:
    """`runs why` says so."""
    app = App("shop")

    @app.workflow
    async def report(ctx: Context) -> None: ...

    async with Environment(app) as env:
        await env.store.create_schedule(every_minute(RunTarget(name="shop/nobody")))
        await env.advance("65s")
        page = await env.store.list_runs(RunFilter(states=("queued",)))
        assert [run.full_name for run in page.runs] == ["shop/nobody"]
        assert [handler for _, handler, _ in await env.store.unserved()] == ["shop/nobody@1"]


async def test_a_run_that_waits_for_a_signal_is_told_apart_from_schedules_that_go_on() -> None:
    """Time could pass for ever: there is always another tick."""
    app = App("shop")

    @app.schedule("* * * * *")
    @app.workflow
    async def report(ctx: Context) -> None: ...

    @app.workflow
    async def waiting(ctx: Context) -> None:
        await ctx.wait_for_signal("packed")

    async with Environment(app, replay=False) as env:
        handle = await env.client.start(waiting)
        with pytest.raises(AssertionError, match="packed"):
            await env.result(handle)


async def test_a_backfill_fires_one_tick_after_the_other() -> None:
    app = App("shop")

    @app.workflow
    async def report(ctx: Context) -> str:
        return str(ctx.scheduled_at)

    async with Environment(app) as env:
        await env.store.create_schedule(every_minute(RunTarget(name="shop/report")))
        first = env.store.time() - 130 * 60_000_000
        asked, notices = await env.store.backfill_schedule(
            "shop/n", first, env.store.time(), backfill_id=UUID(int=7)
        )
        assert asked
        await env.store.notify(notices)
        await env.advance("30s")
        page = await env.client.runs.list(limit=1000)
        assert len(page.runs) == 131
        assert {run.status for run in page.runs} == {"completed"}
