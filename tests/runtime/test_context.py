"""What a workflow's code gets from its context."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from uuid import UUID

import pytest

from holdfast import App, Context, current_context
from holdfast.definitions.activities import current_activity
from holdfast.definitions.steps import Step, StepContext, current_step
from holdfast.errors import InvalidName, PayloadError
from holdfast.events import VALUE_SET
from holdfast.retry import Retry
from holdfast.runtime.code.run import RunInfo
from holdfast.runtime.code.steps import Call
from holdfast.runtime.turn.turn import Turn
from holdfast.testing import Environment
from holdfast.types import Event
from tests.runtime.bench import RUN_ID, SECOND, START, Bench, work


def plain(item: int, *, more: int = 0) -> int:
    raise AssertionError("the test gives the results")


def test_time_is_that_of_the_newest_event_live_and_on_replay() -> None:
    """Trap 21."""

    async def flow(ctx: Context) -> list[object]:
        seen: list[object] = [ctx.now().isoformat(), ctx.time()]
        await work(1)
        return [*seen, ctx.now().isoformat(), asyncio.get_running_loop().time()]

    bench = Bench(flow)
    bench.now += 90 * SECOND
    bench.complete("work")
    assert bench.commit_due is not None
    live = bench.commit_due.then
    bench.turn.abandon()
    bench.log += bench.commit_due.events[:1]
    bench.now += 3600 * SECOND
    bench.claim()
    bench.settle()
    assert bench.last is not None
    assert bench.last.then == live
    assert bench.output == [
        "2023-11-14T22:13:20+00:00",
        START / SECOND,
        "2023-11-14T22:14:50+00:00",
        START / SECOND + 90,
    ]


def test_random_numbers_are_the_same_on_each_replay_and_differ_between_tasks() -> None:
    async def flow(ctx: Context) -> list[object]:
        async def draw() -> list[object]:
            return [ctx.random.random(), str(ctx.uuid()), str(ctx.uuid(id="own"))]

        found = await asyncio.gather(draw(), draw())
        await work(1)
        return [*found[0], *found[1], ctx.random.random()]

    bench = Bench(flow)
    bench.complete("work")
    bench.settle()
    again = Bench(flow)
    again.crash()
    again.complete("work")
    again.settle()
    assert bench.output == again.output
    assert len(set(bench.output)) == 7


def test_the_context_knows_its_run() -> None:
    async def flow(ctx: Context, given: dict[str, int]) -> list[object]:
        return [str(ctx.run_id), ctx.workflow, ctx.version, ctx.attempt, ctx.cancelled, given]

    bench = Bench(flow, given={"n": 1})
    bench.settle()
    assert bench.output == [str(RUN_ID), "flow", 1, 1, False, {"n": 1}]


def test_an_input_that_does_not_fit_fails_the_run() -> None:
    async def flow(ctx: Context, given: int) -> None:
        raise AssertionError("never called")

    bench = Bench(flow, given="text")
    bench.settle()
    assert bench.ended == "failed"
    assert bench.error["kind"] == "holdfast.errors.InvalidInput"


def test_any_function_is_a_step_under_a_name() -> None:
    async def flow(ctx: Context) -> list[object]:
        first = await ctx.step("one", plain, 1, more=2)
        second = await ctx.step("two", plain, 2, retry=Retry(attempts=7), timeout="3s", id="second")
        third = await ctx.step("three", lambda: 3)
        return [first, second, third]

    bench = Bench(flow)
    for key in ("one", "second", "three"):
        bench.complete(key, 1)
        bench.settle()
    calls = {call.key: call for call in bench.started}
    assert calls["one"].name == "one"
    assert calls["second"].step.retry.attempts == 7
    assert calls["second"].step.timeout_seconds == 3
    assert bench.output == [1, 1, 1]


def test_a_step_keeps_its_options_under_another_name() -> None:
    patient = Step(plain, retry=Retry(attempts=9), timeout="1m")

    async def flow(ctx: Context) -> int:
        return await ctx.step("renamed", patient, 1)

    step = Bench(flow).started[0].step
    assert (step.name, step.retry.attempts, step.timeout_seconds) == ("renamed", 9, 60)


@pytest.mark.parametrize("name", ["", "a/b", "a b", "x" * 129])
def test_names_of_steps_are_checked(name: str) -> None:
    """B1."""

    async def flow(ctx: Context) -> str:
        for options in ({"name": name}, {"name": "good", "id": name}):
            try:
                ctx.step(options["name"], plain, 1, id=options.get("id")).close()
            except InvalidName:
                continue
            return "taken"
        return "refused"

    bench = Bench(flow)
    bench.settle()
    assert bench.output == "refused"


def test_a_value_is_written_once_with_the_next_commit() -> None:
    async def flow(ctx: Context) -> None:
        for done in range(3):
            await work(done)
            ctx.set_value("progress", {"done": done})

    bench = Bench(flow)
    for key in ("work", "work#2"):
        bench.complete(key)
        bench.settle()
        bench.crash()
    bench.complete("work#3")
    bench.settle()
    values = [(event.key, event.details) for event in bench.of_type(VALUE_SET)]
    assert values == [("progress", f'{{"value":{{"done":{done}}}}}') for done in range(3)]


def test_a_value_that_cannot_be_stored_is_refused_where_it_is_set() -> None:
    """Trap 20."""

    async def flow(ctx: Context) -> str:
        try:
            ctx.set_value("bad", object())
        except PayloadError:
            return "refused"
        return "stored"

    bench = Bench(flow)
    bench.settle()
    assert bench.output == "refused"


@pytest.mark.parametrize(
    "call",
    [lambda ctx: ctx.set_value("no\0name", 1), lambda ctx: ctx.uuid(id="no/name")],
    ids=["set", "uuid"],
)
def test_a_name_that_cannot_be_stored_is_refused_where_it_is_given(
    call: Callable[[Context], object],
) -> None:
    """Trap 20. Else the database would refuse the commit, and the run would be stuck."""

    async def flow(ctx: Context) -> str:
        try:
            call(ctx)
        except InvalidName:
            return "refused"
        return "taken"

    bench = Bench(flow)
    bench.settle()
    assert bench.output == "refused"


def test_the_log_is_silent_on_replay(caplog: pytest.LogCaptureFixture) -> None:
    async def flow(ctx: Context) -> None:
        ctx.log.info("begins")
        await work(1)
        ctx.log.info("worked %d times", 1, extra={"more": "more"})
        await ctx.wait_for_signal("go")
        ctx.log.info("went")

    caplog.set_level(logging.INFO, "holdfast.workflow")
    bench = Bench(flow)
    bench.complete("work")
    bench.commit()
    bench.log.append(bench.signal("go"))
    bench.crash()
    bench.settle()
    assert [record.message for record in caplog.records] == ["begins", "worked 1 times", "went"]
    record = vars(caplog.records[1])
    assert [record[name] for name in ("run_id", "workflow", "more")] == [
        str(RUN_ID),
        "flow",
        "more",
    ]


def test_new_entries_for_a_cached_turn_are_not_a_replay(caplog: pytest.LogCaptureFixture) -> None:
    async def flow(ctx: Context) -> None:
        await ctx.wait_for_signal("go")
        ctx.log.info("went")

    caplog.set_level(logging.INFO, "holdfast.workflow")
    bench = Bench(flow)
    bench.commit()
    bench.resume(bench.signal("go"))
    assert [record.message for record in caplog.records] == ["went"]


def test_a_branch_does_not_shift_the_keys_of_another() -> None:
    def flow(extra: bool) -> Bench:
        async def code(ctx: Context) -> None:
            async def left() -> None:
                if extra:
                    await work(0)
                await work(1)

            async def right() -> None:
                await asyncio.gather(work(2), work(3))

            await asyncio.gather(left(), right())

        return Bench(code)

    assert flow(False).starts == ["left/work", "right/work", "right/work#2"]
    assert flow(True).starts == ["left/work", "right/work", "right/work#2"]


def test_the_code_of_a_step_can_ask_about_itself() -> None:
    info = RunInfo(UUID(int=1), "flow", 2, 1, START)
    call = Call("branch/work", work, "work", "[1]", info.run_id)
    call.attempt = 3
    context = StepContext(info, call)

    async def step() -> None:
        context.variable.set(context)
        here = current_step()
        assert (here.run_id, here.workflow, here.version) == (info.run_id, "flow", 2)
        assert (here.key, here.step, here.attempt) == ("branch/work", "work", 3)
        assert here.idempotency_key == f"{info.run_id}/branch/work"
        assert not here.cancelled
        assert not here.wait_cancelled(0)
        here.cancel()
        assert here.cancelled
        assert here.wait_cancelled(10)

    asyncio.run(step())


def test_a_plain_function_called_as_a_step_has_the_apps_retry() -> None:
    app = App("shop", retry=Retry(attempts=9))

    @app.workflow
    async def order(ctx: Context) -> object:
        return await ctx.step("one", plain, 1)

    info = RunInfo(RUN_ID, "order", 1, 1, START)
    turn = Turn(order, info, 1, [Event("WorkflowStarted", None, "null", START)], lambda: START)
    [call] = turn.begin().start
    assert call.step.retry.attempts == 9
    turn.abandon()


@pytest.mark.parametrize(
    ("ask", "other"), [(current_step, "current_activity()"), (current_activity, "current_step()")]
)
def test_asking_outside_of_a_step_says_where_to_ask(ask: Callable[[], object], other: str) -> None:
    with pytest.raises(LookupError, match="test it through a workflow") as caught:
        ask()
    message = str(caught.value)
    assert f"call {ask.__name__}() in the code of" in message
    assert f"has {other}" in message


async def test_code_without_a_parameter_finds_the_context_of_its_workflow() -> None:
    """Also in tasks, in handlers of updates and while it is cleaned up; steps are outside."""
    app, seen = App("library"), dict[str, UUID | None]()

    def library(where: str) -> None:
        context = current_context()
        seen[where] = None if context is None else context.run_id

    @app.step
    async def ask() -> None:
        library("step")

    @app.step
    def ask_in_a_thread() -> None:
        library("thread")

    @app.activity
    async def order() -> None:
        library("activity")

    async def task() -> None:
        library("task")

    async def change() -> None:
        library("handler")

    @app.workflow
    async def buy(ctx: Context) -> str:
        ctx.handle_update("change", change)
        library("code")
        await asyncio.create_task(task())
        await asyncio.gather(ask(), ask_in_a_thread(), order())
        try:
            return await ctx.wait_for_signal("go", type=str)
        finally:
            library("cleanup")

    library("outside")
    async with Environment(app) as env:
        handle = await env.client.start(buy)
        await env.advance(1)
        await handle.update("change")
        await handle.signal("go", "gone")
        assert await handle.result() == "gone"
    inside = {"code", "task", "handler", "cleanup"}
    assert seen == {
        **dict.fromkeys(inside, handle.run_id),
        **dict.fromkeys(["step", "thread", "activity", "outside"]),
    }
