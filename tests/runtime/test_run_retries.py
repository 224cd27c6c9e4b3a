"""Runs that fail and are retried by the policy of their workflow."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from holdfast import App, Context, Retry, RunCancelled, RunFailed, StepFailed
from holdfast.definitions.workflows import Workflow
from holdfast.errors import ConfigurationError, ForkRefused, InvalidInput, RunTimedOut, UpdateFailed
from holdfast.events import FORKED
from holdfast.insight.why import explain_run
from holdfast.payloads import AesGcm
from holdfast.runtime.code import instance
from holdfast.runtime.code.begun import call_begun
from holdfast.runtime.code.run import RunInfo
from holdfast.runtime.turn.rehearsal import rehearse
from holdfast.testing import Environment
from holdfast.types import Event

app = App("shop", retry=Retry.NEVER)
calls: list[str] = []
failing: dict[str, int] = {}  # how often calls of a name still fail
POLICY = Retry(attempts=3, base="1m", max="1h", jitter=0)


class Away(Exception):
    """A failure that passes."""


class Refused(Exception):
    """A failure that stays."""


def act(name: str) -> str:
    calls.append(name)
    if failing.get(name, 0) > 0:
        failing[name] -= 1
        raise Away(name)
    return name


@app.step
async def charge() -> str:
    return act("charge")


@app.step
async def ship(known_as: str) -> str:
    return act("ship")


@app.step
async def tick(n: int) -> None:
    act(f"tick {n}")


@app.step
async def refund() -> None:
    act("refund")


@app.step
async def refuse() -> None:
    raise Refused("no")


@app.workflow(retry=POLICY)
async def sale(ctx: Context) -> str:
    await charge()
    try:
        return await ship(f"{ctx.run_id} {ctx.run_key}")
    except StepFailed:
        await refund()
        raise


@app.workflow(retry=POLICY)
async def poll(ctx: Context) -> str:
    await charge()
    return act("own code")


@app.workflow(
    retry=Retry(
        attempts=None,
        base="1m",
        max="1m",
        jitter=0,
        should_retry=lambda e: not (isinstance(e, StepFailed) and e.matches(Refused)),
    )
)
async def choosy(ctx: Context) -> None:
    await ship("x")
    await refuse()


def unsure(error: BaseException) -> bool:
    raise RuntimeError("the policy is broken")


@app.workflow(retry=Retry(should_retry=unsure))
async def broken(ctx: Context) -> None:
    await refuse()


async def later(error: BaseException) -> bool:
    return True


@app.workflow(retry=Retry(should_retry=functools.partial(lambda f, e: f(e), later)))
async def asking(ctx: Context) -> None:
    await refuse()


@app.workflow(retry=Retry(base="1h", max="1h", delay=lambda error: "10s"))
async def asked(ctx: Context) -> str:
    return await ship("x")


@app.workflow(retry=POLICY)
async def unstorable(ctx: Context) -> object:
    await charge()
    return object()


@app.workflow(retry=POLICY)
async def parent(ctx: Context) -> str:
    return await ctx.child(sale)


@app.workflow(retry=POLICY)
async def patient(ctx: Context) -> object:
    try:
        return await ctx.wait_for_signal("go")
    except asyncio.CancelledError:
        await refund()
        raise Away("while it cleans up") from None


@app.workflow(retry=POLICY)
async def counting(ctx: Context, n: int) -> int:
    await tick(n)
    if n < 3:
        ctx.continue_as_new(n + 1)
    return n


@app.workflow(retry=POLICY)
async def telling(ctx: Context) -> None:
    stream = ctx.stream("progress", type=str)
    await stream.write("charging")
    await charge()
    await stream.write("shipping")
    await ship("x")
    await stream.write("done")


@app.workflow(retry=POLICY)
async def listening(ctx: Context) -> list[Any]:
    first = await ctx.wait_for_event("orders.#")
    await ship("x")
    second = await ctx.wait_for_event("orders.#")
    return [first.payload, second.payload]


@app.workflow(retry=POLICY)
async def guarded(ctx: Context) -> str:
    async with asyncio.timeout(600):
        await ctx.sleep("1m")
        return await ship("x")


@app.workflow(retry=POLICY)
async def random(ctx: Context) -> list[str]:
    drawn = [str(ctx.uuid()), str(ctx.now())]
    await ship("x")
    return [*drawn, str(ctx.uuid())]


@app.workflow(retry=POLICY)
async def updated(ctx: Context) -> int:
    total = 0

    async def add(n: int) -> int:
        nonlocal total
        await tick(n)
        await ctx.wait_for_signal("answer")
        total += n
        return total

    ctx.handle_update("add", add)
    await ctx.wait_for_signal("go")
    await ship("x")
    return total


gate = asyncio.Event()


@app.step
async def slowly() -> str:
    await gate.wait()
    return act("slowly")


@app.workflow(retry=POLICY)
async def slow(ctx: Context) -> str:
    return await slowly()


@app.workflow(retry=POLICY)
async def lost(ctx: Context) -> None:
    await asyncio.get_running_loop().create_future()


@pytest.fixture
async def env() -> AsyncIterator[Environment]:
    calls.clear()
    failing.clear()
    gate.clear()
    async with Environment(app) as env:
        yield env


async def newest(env: Environment, run_id: UUID) -> Any:
    found = await env.store.newest_runs([run_id])
    return await env.client.runs.get(found[run_id])


async def test_a_run_that_fails_is_retried_with_what_it_has_done(env: Environment) -> None:
    """And its code knows it by the same id and key."""
    failing["ship"] = 2
    began = env.now
    handle = await env.client.start(sale, key="k")
    assert await env.result(handle) == "ship"
    assert calls == ["charge", "ship", "refund", "ship", "refund", "ship"]
    assert env.now - began == timedelta(minutes=3)
    runs = (await env.client.runs.list(key="k")).runs
    assert [run.status for run in runs] == ["completed", "continued", "continued"]
    last = await newest(env, handle.run_id)
    assert last.last_failure.number == 2
    assert last.last_failure.error.cause.message == "ship"


async def test_the_last_failure_is_that_of_the_run(env: Environment) -> None:
    failing["ship"] = 9
    handle = await env.client.start(sale, key="k")
    with pytest.raises(RunFailed) as caught:
        await env.result(handle)
    assert caught.value.matches(StepFailed)
    assert calls.count("ship") == 3
    runs = (await env.client.runs.list(key="k")).runs
    assert [run.status for run in runs] == ["failed", "continued", "continued"]


async def test_a_parent_hears_of_the_last_failure_only(env: Environment) -> None:
    failing["ship"] = 2
    assert await env.run(parent) == "ship"
    assert calls.count("charge") == 1
    failing["ship"] = 5  # a child is made again by each attempt of its parent
    calls.clear()
    assert await env.run(parent) == "ship"
    assert (calls.count("charge"), calls.count("ship")) == (2, 6)


async def test_code_that_raises_gets_the_same_results(env: Environment) -> None:
    failing["own code"] = 2
    assert await env.run(poll) == "own code"
    assert calls.count("charge") == 1


async def test_the_policy_says_what_is_not_retried(env: Environment) -> None:
    failing["ship"] = 7
    with pytest.raises(RunFailed, match="refuse failed"):
        await env.run(choosy)
    assert calls.count("ship") == 8


@pytest.mark.parametrize(
    ("workflow", "problem"), [(broken, "should_retry failed"), (asking, "cannot be async")]
)
async def test_a_policy_that_cannot_decide_says_no(
    env: Environment, caplog: pytest.LogCaptureFixture, workflow: Any, problem: str
) -> None:
    with pytest.raises(RunFailed, match="refuse failed"):
        await env.run(workflow)
    assert problem in caplog.text


async def test_an_error_may_say_when(env: Environment) -> None:
    failing["ship"] = 1
    began = env.now
    assert await env.run(asked) == "ship"
    assert env.now - began == timedelta(seconds=10)


async def test_a_value_that_cannot_be_stored_is_not_retried(env: Environment) -> None:
    with pytest.raises(RunFailed):
        await env.run(unstorable)
    assert calls == ["charge"]
    assert (await env.client.runs.list()).runs[0].last_failure is None


async def test_a_run_that_was_asked_to_stop_is_not_retried(env: Environment) -> None:
    handle = await env.client.start(patient)
    await env.advance("1s")
    await env.client.runs.cancel(handle.run_id)
    with pytest.raises(RunFailed, match="while it cleans up"):
        await env.result(handle)
    assert calls == ["refund"]


async def test_a_cancel_while_it_waits_reaches_its_code(env: Environment) -> None:
    failing["ship"] = 1
    handle = await env.client.start(sale)
    await env.advance("1s")
    assert await env.client.runs.cancel(handle.run_id)
    with pytest.raises(RunCancelled):
        await env.result(handle)
    assert calls == ["charge", "ship", "refund"]


async def test_a_deadline_holds_for_all_attempts(env: Environment) -> None:
    failing["ship"] = 9
    handle = await env.client.start(sale, timeout="2m")
    began = env.now
    with pytest.raises(RunTimedOut):
        await env.result(handle)
    assert env.now - began == timedelta(minutes=2)
    assert calls.count("ship") == 2


async def test_a_run_that_waits_says_so_and_can_begin_at_once(env: Environment) -> None:
    failing["ship"] = 1
    handle = await env.client.start(sale, key="k")
    await env.advance("1s")
    run = await newest(env, handle.run_id)
    assert (run.state, run.due_at - env.now) == ("waiting", timedelta(seconds=59))
    why = await explain_run(env.store, run.record)
    assert "it failed 1 of 3 times, and is tried again at" in why.because
    assert why.because.endswith("Away: ship")
    with pytest.raises(ForkRefused, match=r"retried by itself.*reschedule"):
        await env.client.runs.retry(run.run_id)
    assert await env.client.runs.reschedule(run.run_id, delay=0)
    assert await env.result(handle) == "ship"
    assert env.now - run.created_at < timedelta(seconds=2)


async def test_a_run_of_several_attempts_that_failed_is_retried_by_hand(env: Environment) -> None:
    """The policy counts again."""
    failing["ship"] = 4
    handle = await env.client.start(sale, key="k")
    with pytest.raises(RunFailed):
        await env.result(handle)
    again = await env.client.runs.retry(("sale", "k"))
    assert await env.result(again) == "ship"
    assert calls.count("ship") == 5
    assert calls.count("charge") == 1


async def test_to_continue_as_new_counts_again(env: Environment) -> None:
    failing.update({"tick 1": 2, "tick 2": 2, "tick 3": 2})
    assert await env.run(counting, 1) == 3


async def test_a_stream_has_each_value_once(env: Environment) -> None:
    failing["ship"] = 2
    handle = await env.client.start(telling)
    await env.result(handle)
    read = [value async for value in handle.stream("progress", type=str)]
    assert read == ["charging", "shipping", "done"]


async def test_events_reach_the_attempt_that_waits(env: Environment) -> None:
    failing["ship"] = 1
    handle = await env.client.start(listening)
    await env.advance("1s")
    await env.publish("orders.1", 1)
    await env.advance("1s")
    await env.publish("orders.2", 2)
    assert await env.result(handle) == [1, 2]


async def test_an_update_that_was_begun_is_answered_by_the_next_attempt(env: Environment) -> None:
    failing["ship"] = 1
    handle = await env.client.start(updated)
    asking = asyncio.create_task(handle.update("add", 5, update_id="u", timeout="1h"))
    await env.advance("1s")
    await handle.signal("go")
    await env.advance("1s")
    assert calls == ["tick 5", "ship"]
    assert not asking.done()
    await handle.signal("answer")
    assert await env.result(handle) == 5
    assert await asking == 5
    assert await handle.update("add", 5, update_id="u") == 5
    assert calls == ["tick 5", "ship", "ship"]


async def test_an_update_that_was_begun_hears_of_the_last_failure(env: Environment) -> None:
    failing["ship"] = 3
    handle = await env.client.start(updated)
    asking = asyncio.create_task(handle.update("add", 5, timeout="1h"))
    await env.advance("1s")
    await handle.signal("go")
    with pytest.raises(RunFailed):
        await env.result(handle)
    with pytest.raises(UpdateFailed, match="before it had carried out the update"):
        await asking
    assert calls == ["tick 5", *["ship"] * 3]


async def test_timers_that_fired_are_kept(env: Environment) -> None:
    failing["ship"] = 1
    began = env.now
    assert await env.run(guarded) == "ship"
    assert env.now - began == timedelta(minutes=2)


async def test_chance_and_time_are_those_of_the_first_attempt(env: Environment) -> None:
    failing["ship"] = 1
    began = env.now
    first, now, second = await env.run(random)
    assert now == str(began)
    assert first != second


async def test_each_attempt_survives_a_worker_that_dies(env: Environment) -> None:
    failing["ship"] = 2
    handle = await env.client.start(sale, key="k")
    for _ in range(3):
        await env.advance("1s")
        await env.kill()
        await env.advance("1m")
    assert await env.result(handle) == "ship"
    assert calls == ["charge", "ship", "refund", "ship", "refund", "ship"]


async def test_the_log_of_an_attempt_names_those_before(env: Environment) -> None:
    failing["ship"] = 2
    handle = await env.client.start(sale)
    await env.result(handle)
    last = await newest(env, handle.run_id)
    log = await env.client.runs.log(last.run_id)
    assert [each.event.type for each in log].count(FORKED) == 2


async def test_a_failed_attempt_is_logged(
    env: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    failing["ship"] = 1
    with caplog.at_level(logging.WARNING, "holdfast.run"):
        await env.run(sale)
    assert "attempt 1 of the run failed" in caplog.text
    assert "next attempt in 1 m" in caplog.text


@pytest.mark.parametrize(
    ("retry", "problem"),
    [
        (3, "workflow w: retry must be a Retry"),
        ("3", "workflow w: retry must be a Retry"),
        (Retry(should_retry=later), "workflow w: should_retry of a workflow cannot be async"),
    ],
)
def test_a_policy_that_cannot_work_is_refused(retry: Any, problem: str) -> None:
    async def w(ctx: Context) -> None: ...

    with pytest.raises(ConfigurationError, match=problem):
        App("a").workflow(retry=retry)(w)


def test_an_input_that_does_not_fit_is_refused_at_the_start() -> None:
    with pytest.raises(InvalidInput):
        counting.encode_input("x")  # type: ignore[arg-type]


async def test_a_check_follows_the_log_of_each_attempt(env: Environment) -> None:
    """Also of one that failed, and with a policy that would not retry it any more."""
    failing["ship"] = 2
    handle = await env.client.start(sale, key="k")
    await env.result(handle)
    without = Workflow(sale.fn, registry=app.registry)
    for run in (await env.client.runs.list(key="k")).runs:
        log = (await env.store.read_events([(run.run_id, 0)]))[run.run_id]
        info = RunInfo(run.run_id, "sale", 1, 1, log[0].at, None, run.key)
        assert rehearse(sale, info, log) is None
        assert rehearse(without, info, log) is None


async def test_an_error_is_encrypted_in_the_logs_of_both_attempts() -> None:
    secret = App("secret", retry=Retry.NEVER, payload_codec=AesGcm({"a": bytes(32)}))

    @secret.step
    async def tell(name: str) -> str:
        return act(name)

    @secret.workflow(retry=POLICY)
    async def hidden(ctx: Context) -> str:
        return await tell("4711")

    failing["4711"] = 1
    async with Environment(secret) as env:
        handle = await env.client.start(hidden)
        await env.advance("1s")
        stored = await env.store.newest_runs([handle.run_id])
        logs = await env.store.read_events([(each, 0) for each in {*stored, *stored.values()}])
        assert len(logs) == 2
        assert not [e for log in logs.values() for e in log if "4711" in (e.details or "")]
        [waiting] = [run for run in (await env.client.runs.list()).runs if run.state == "waiting"]
        assert waiting.last_failure is not None
        assert "4711" in waiting.last_failure.error.message
        assert await env.result(handle) == "4711"


async def test_a_pause_holds_back_the_next_attempt(env: Environment) -> None:
    failing["ship"] = 1
    handle = await env.client.start(sale)
    await env.advance("1s")
    await env.client.runs.pause(handle.run_id)
    await env.advance("1h")
    assert calls == ["charge", "ship", "refund"]
    await env.client.runs.resume(handle.run_id)
    assert await env.result(handle) == "ship"


async def test_a_run_that_fails_as_it_is_paused_is_retried_once_it_is_resumed(
    env: Environment,
) -> None:
    failing["slowly"] = 1
    handle = await env.client.start(slow)
    await asyncio.sleep(0.05)
    await env.client.runs.pause(handle.run_id)
    gate.set()
    await env.advance("1h")
    assert calls == ["slowly"]
    await env.client.runs.resume(handle.run_id)
    assert await env.result(handle) == "slowly"


async def test_a_run_that_is_stuck_is_not_retried(env: Environment) -> None:
    handle = await env.client.start(lost)
    await env.advance("10m")
    run = await newest(env, handle.run_id)
    assert (run.run_id, run.state, run.last_failure) == (handle.run_id, "stuck", None)


async def test_the_entries_of_retries_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt has the entries of those before in its log, and reads them in one pass."""
    read, attempts = 0, 0

    def counted(event: Event) -> str | None:
        nonlocal read
        read += 1
        return call_begun(event)

    often = App("often")

    @often.workflow(retry=Retry(attempts=None, base=0))
    async def stubborn(ctx: Context) -> None:
        nonlocal attempts
        attempts += 1
        if attempts < 40:
            raise Away

    monkeypatch.setattr(instance, "call_begun", counted)
    async with Environment(often, replay=False) as env:
        await env.run(stubborn)
        (newest, *_) = (await env.client.runs.list()).runs
        log = await env.client.runs.log(newest.run_id)
    assert 0 < read < attempts * len(log)
