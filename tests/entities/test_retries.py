"""Retries of workflows whose calls of entities have failed make these calls again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from uuid import UUID, uuid4

import pytest

from holdfast import App, Client, Context, Retry, current_context
from holdfast.errors import RunFailed, UpdateFailed
from holdfast.store.port import Store
from holdfast.types import UPDATE_REPLY
from holdfast.values.answers import answer_id, answered_call
from holdfast.values.ids import sent_id
from holdfast.worker import Worker

app = App("lamps")
refused: list[str] = []
noted: list[str] = []


@app.step(retry=Retry.NEVER)
async def note(what: str) -> None:
    """Keep what was done; a text that is refused fails."""
    noted.append(what)
    if what in refused:
        raise RuntimeError(f"{what} is refused")


@app.entity
@dataclass
class Lamp:
    """Counts what was done with it."""

    key: str
    count: int = 0

    async def press(self, what: str) -> int:
        """Change the lamp, if that is not refused."""
        self.count += 1
        if what in refused:
            raise ValueError(f"{what} is refused")
        return self.count

    async def press_slowly(self, what: str) -> int:
        """Change the lamp a second later."""
        await asyncio.sleep(1)
        return await self.press(what)

    async def pass_on(self, what: str) -> int:
        """Let another lamp be changed."""
        ctx = current_context()
        assert ctx is not None
        return await ctx.entity(Lamp, "other").press(what)


@app.workflow
async def press(ctx: Context, what: str) -> int:
    """Change a lamp."""
    await note("first")
    return await ctx.entity(Lamp, "a").press(what)


@app.workflow(retry=Retry(attempts=3, base="10ms"))
async def press_often(ctx: Context, what: str) -> int:
    """Change a lamp, and let what it refuses be allowed."""
    lamp = ctx.entity(Lamp, "a")
    await lamp.press("fine")
    try:
        return await lamp.press(what)
    except UpdateFailed:
        await allow(what)
        raise


@app.step
async def allow(what: str) -> None:
    """Refuse it no more."""
    refused.remove(what)


@app.workflow
async def press_later(ctx: Context, what: str) -> int:
    """Change a lamp when the signal comes."""
    await ctx.wait_for_signal("go")
    return await ctx.entity(Lamp, "a").press(what)


@app.workflow
async def press_all(ctx: Context, all_of: list[str]) -> list[int]:
    """Change a lamp several times at once."""
    lamp = ctx.entity(Lamp, "a")
    return await asyncio.gather(*(lamp.press(each) for each in all_of))


@app.workflow
async def press_and_handle(ctx: Context, what: str) -> list[object]:
    """Handle a failure, and fail."""
    lamp, found = ctx.entity(Lamp, "a"), list[object]()
    for each in ("fine", what, "good"):
        try:
            found.append(await lamp.press(each))
        except UpdateFailed:
            found.append(await lamp.pass_on("instead"))
    if what in refused:
        raise ValueError("not all of it")
    return found


@app.workflow
async def press_beside(ctx: Context, what: str) -> int:
    """Fail while a call has no answer."""
    lamp = ctx.entity(Lamp, "a")
    await lamp.press("fine")
    pressing = asyncio.create_task(lamp.press_slowly(what))
    await ctx.sleep(0.3)
    await note("beside")
    found = await pressing
    await note("after")
    return found


@pytest.fixture(autouse=True)
def nothing_refused() -> None:
    """Begin each test with nothing that is refused."""
    refused.clear()
    noted.clear()


@pytest.fixture
async def worker(store: Store) -> AsyncIterator[Worker]:
    """Provide a worker that runs."""
    worker = Worker(app, store)
    await worker.start()
    yield worker
    await worker.stop(0)


@pytest.fixture(autouse=True)
def working(worker: Worker) -> None:
    """Have a worker in each test."""


async def failed(client: Client, workflow: str, given: object) -> UUID:
    run = await client.start(f"lamps/{workflow}", given)
    assert (await client.runs.wait(run.run_id, timeout=30)).status == "failed"
    return run.run_id


async def count(client: Client, key: str = "a") -> int:
    return (await client.entities.get(Lamp, key)).count


async def types(client: Client, run_id: UUID) -> list[tuple[str, str | None]]:
    log = await client.handle(run_id).log()
    return [(each.event.type, each.event.key) for each in log]


async def test_a_retry_makes_a_call_again_that_failed(client: Client) -> None:
    """Fault: it was given the recorded failure for ever, and never called."""
    refused.append("on")
    run = await failed(client, "press", "on")
    plan = await client.runs.retry_plan(run)
    assert (plan.kept, plan.failed, plan.after) == (("note",), ("Lamp.press",), ())
    again = await client.runs.retry(run)
    with pytest.raises(RunFailed, match="on is refused"):
        await again.result(timeout=30)
    assert await count(client) == 0
    refused.clear()
    last = await client.runs.retry(again.run_id)
    assert await last.result(timeout=30) == 1
    assert (await count(client), noted) == (1, ["first"])
    log = await types(client, last.run_id)
    answers = [answered_call(key) for kind, key in log if kind == "SignalReceived"]
    [answer] = [each for each in answers if each is not None]  # those that failed are left out
    assert (answer.run_id, answer.key, answer.failed) == (str(last.run_id), "Lamp.press", False)


async def test_the_next_attempt_makes_a_call_again_that_failed(client: Client) -> None:
    refused.append("on")
    run = await client.start("lamps/press_often", "on")
    assert await run.result(timeout=30) == 2
    assert await count(client) == 2, "a call that was answered is not made again"


async def test_calls_beside_it_are_kept(client: Client) -> None:
    refused.extend(("b", "d"))
    run = await failed(client, "press_all", ["a", "b", "c", "d", "e"])
    assert await count(client) == 3
    refused.clear()
    status = "failed"
    while status == "failed":  # the answers that came after the end
        run = (await client.runs.retry(run)).run_id
        status = (await client.runs.wait(run, timeout=30)).status
    assert status == "completed"
    assert await count(client) == 5


async def test_failed_steps_are_also_calls_whose_failure_was_handled(client: Client) -> None:
    refused.append("on")
    run = await failed(client, "press_and_handle", "on")
    assert (await count(client), await count(client, "other")) == (2, 1)
    plain = await client.runs.retry_plan(run)
    assert (plain.failed, plain.after) == ((), ())
    plan = await client.runs.retry_plan(run, failed_steps=True)
    assert plan.failed == ("Lamp.press#2",)
    assert plan.after == ("Lamp.pass_on",)
    copy = await client.runs.retry(run)
    assert (await client.runs.wait(copy.run_id, timeout=30)).status == "failed"
    assert await client.runs.retry_plan(copy.run_id, failed_steps=True) == plan
    refused.clear()
    retry = await client.runs.retry(copy.run_id, failed_steps=True)
    assert await retry.result(timeout=30) == [1, 3, 2]
    assert (await count(client), await count(client, "other")) == (3, 1)


@pytest.mark.parametrize("is_own_id", [False, True])
async def test_the_answer_to_an_earlier_call_repeats_nothing(
    client: Client, is_own_id: bool
) -> None:
    """A run hears of the failure of a call that its log lacks; it has made another there.

    A deleted run may have had its id.
    """
    refused.append("beside")
    handle = await client.start("lamps/press_beside", "on")
    call_id = sent_id(handle.run_id if is_own_id else uuid4(), "Lamp.press", 1)
    stray = {"update_id": call_id, "error": {"kind": "builtins.OSError", "message": "no"}}
    await handle.signal(UPDATE_REPLY, stray, answer_id(call_id, failed=True))
    assert (await client.runs.wait(handle.run_id, timeout=30)).status == "failed"
    plan = await client.runs.retry_plan(handle.run_id, failed_steps=True)
    assert plan.failed == ("note",)
    refused.clear()
    retry = await client.runs.retry(handle.run_id, failed_steps=True)
    assert await retry.result(timeout=30) == 2
    assert await count(client) == 2


async def test_a_failure_that_a_retry_has_looked_for_is_left_out(client: Client) -> None:
    """The second call of its name: the step that looks has the number of the call."""
    refused.extend(("on", "beside"))
    run = await failed(client, "press_beside", "on")
    refused.remove("beside")
    second = await client.runs.retry(run)
    with pytest.raises(RunFailed, match="on is refused"):
        await second.result(timeout=30)
    looked = "Lamp.press_slowly/Lamp.press_slowly.answer"
    assert ("StepCompleted", looked) in await types(client, second.run_id)
    plan = await client.runs.retry_plan(second.run_id)
    assert (plan.failed, plan.after) == (("Lamp.press_slowly/Lamp.press_slowly",), (looked,))
    refused.clear()
    third = await client.runs.retry(second.run_id)
    assert await third.result(timeout=30) == 2
    assert await count(client) == 2


async def test_an_answer_that_a_retry_has_looked_for_is_kept_in_copies(client: Client) -> None:
    refused.extend(("beside", "after"))
    run = await failed(client, "press_beside", "on")
    refused.remove("beside")
    second = await client.runs.retry(run)
    with pytest.raises(RunFailed, match="after is refused"):
        await second.result(timeout=30)
    refused.clear()
    third = await client.runs.retry(second.run_id)
    assert await third.result(timeout=30) == 2
    fork = await client.runs.fork(third.run_id)
    assert await fork.result(timeout=30) == 2
    assert await count(client) == 2


async def test_an_entity_that_was_terminated_is_called_again(client: Client) -> None:
    """A retry is told that the run has ended; the next one calls the entity that is new."""
    run = await client.start("lamps/press_beside", "on")
    async with asyncio.timeout(30):
        while ("StepCompleted", "Lamp.press_slowly/Lamp.press_slowly") not in await types(
            client, run.run_id
        ):
            await asyncio.sleep(0.02)
    await client.runs.terminate(("lamps/Lamp", "a"))
    with pytest.raises(RunFailed, match=r"has ended \(terminated\)"):
        await run.result(timeout=30)
    retry = await client.runs.retry(run.run_id)
    assert await retry.result(timeout=30) == 1


async def test_a_fork_cannot_be_given_the_result_of_a_call(client: Client) -> None:
    """Fault: a text was taken for the id of a call, whose answer the fork looked for for ever."""
    run = await client.start("lamps/press", "on")
    assert await run.result(timeout=30) == 1
    fork = await client.runs.fork(run.run_id, results={"Lamp.press": "2"})
    with pytest.raises(RunFailed, match=r"result of Lamp\.press"):
        await fork.result(timeout=30)


async def test_a_call_is_not_taken_for_another_under_its_id(client: Client) -> None:
    """Fault: code that another call's key was given to got the answer of that call, unrecorded."""
    run = await client.start("lamps/press_later", "on")
    async with asyncio.timeout(30):
        while (began := (await client.runs.get(run.run_id)).record.started_at) is None:
            await asyncio.sleep(0.02)
    call_id = sent_id(run.run_id, "Lamp.press", began)
    assert await client.entity(Lamp, "a", call_id=call_id).press("off") == 1
    await run.signal("go")
    async with asyncio.timeout(30):
        while ("StepRetryScheduled", "Lamp.press") not in await types(client, run.run_id):
            await asyncio.sleep(0.02)
    assert "has a call of press under the id" in str([each.event for each in await run.log()])
    assert await count(client) == 1
