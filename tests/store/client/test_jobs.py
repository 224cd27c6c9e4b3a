"""Jobs: runs of one step or one activity, on both stores."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID

import httpx
import pytest
from tests.databases import DatabaseServer

from holdfast import App, Context, Limit, Retry, Singleton, current_step
from holdfast.client import Client
from holdfast.errors import CallFailed, ConfigurationError, InvalidInput, RunActive, RunFailed
from holdfast.server import Server
from holdfast.server.access import KeyAccess
from holdfast.store.port import Store
from holdfast.store.postgres import PostgresStore
from holdfast.sync import SyncClient
from holdfast.types import RunFilter
from holdfast.worker import Worker


@dataclass
class Mail:
    """A type that comes back as it was."""

    to: str
    at: datetime | None = None


class Desk:
    """An app with jobs, and what they did."""

    def __init__(self) -> None:
        self.app = app = App("jobs", retry=Retry(attempts=3, base=0))
        self.sent = list[str]()
        self.at_once = self.most_at_once = 0

        @app.job
        async def send(mail: Mail, text: str, copies: int = 1) -> list[str]:
            """Send a mail."""
            self.sent += [f"{mail.to}: {text}"] * copies
            return self.sent[-copies:]

        @app.job(queue="media", priority=1, retention="1d", run_timeout="1h")
        def shrink(path: str) -> str:
            if len(self.sent) < 2:
                self.sent.append(path)
                raise OSError(path)
            return f"small-{path} in attempt {current_step().attempt}"

        @app.job
        @app.activity(queue="gpu")
        async def train(rounds: int) -> int:
            return rounds * 2

        @app.job(concurrency=1)
        async def alone(number: int) -> int:
            self.at_once += 1
            self.most_at_once = max(self.at_once, self.most_at_once)
            await asyncio.sleep(0)
            self.at_once -= 1
            return number

        @app.job(singleton=Singleton(key="input.customer"))
        def once(customer: str) -> str:
            return customer

        @app.job(retry=Retry.NEVER)
        def clean_up(*, days: int = 30) -> int:
            return days

        @app.workflow
        async def both(ctx: Context, to: str) -> list[Any]:
            return [await send(Mail(to), text="hi"), await train(rounds=2)]

        self.send, self.shrink, self.train, self.alone = send, shrink, train, alone
        self.once, self.clean_up, self.both = once, clean_up, both


@pytest.fixture
def desk() -> Desk:
    return Desk()


@asynccontextmanager
async def working(app: App, store: Store) -> AsyncIterator[Worker]:
    worker = Worker(app, store)
    await worker.start()
    try:
        yield worker
    finally:
        await worker.stop(grace=0)


async def names_of_runs(store: Store) -> list[str]:
    return [run.name for run in (await store.list_runs(RunFilter(limit=100))).runs]


async def test_a_job_is_started_with_its_arguments_and_is_a_run_of_its_name(
    store: Store, client: Client, desk: Desk
) -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    async with working(desk.app, store):
        handle = await client.start(desk.send, Mail("ann", at), "hello", 2, key="m", tags=["x"])
        assert await handle.result("60s") == ["ann: hello"] * 2
        again = await client.start(desk.send, Mail("bob"), "other", key="m")
    assert again.already_existed
    assert desk.sent == ["ann: hello"] * 2
    (run,) = (await client.runs.list(names="jobs/send", tags=["x"])).runs
    assert (run.run_id, run.state, run.queue) == (handle.run_id, "completed", "default")
    record = (await client.runs.get((desk.send, "m"))).record
    mail = '{"to":"ann","at":"2030-01-01T00:00:00Z"}'
    assert record.input == f'{{"mail":{mail},"text":"hello","copies":2}}'
    steps = [each.event.key for each in await client.runs.log(handle.run_id) if each.event.key]
    assert steps == ["send"]


async def test_options_of_the_job_hold_and_its_step_is_tried_again(
    store: Store, client: Client, desk: Desk
) -> None:
    async with working(desk.app, store):
        handle = await client.start(desk.shrink, "a.png")
        assert await handle.result("60s") == "small-a.png in attempt 3"
    run = await handle.get()
    assert (run.queue, run.priority, run.retention_seconds) == ("media", 1, 86_400)
    assert run.deadline_at == run.created_at + timedelta(hours=1)


async def test_a_job_that_fails_for_good_fails_its_run(client: Client, store: Store) -> None:
    app = App("jobs")

    @app.job(retry=Retry.NEVER)
    def fail(reason: str) -> None:
        raise ValueError(reason)

    async with working(app, store):
        with pytest.raises(RunFailed, match="step fail failed: ValueError: why"):
            await client.run(fail, "why", wait="60s")


async def test_options_of_a_start_override_those_of_the_job(client: Client, desk: Desk) -> None:
    handle = await client.start(desk.shrink, "a", queue="slow", priority=4, delay="1h", timeout=9)
    run = await handle.get()
    assert (run.queue, run.priority, run.state) == ("slow", 4, "waiting")
    assert run.wait is not None
    assert run.wait.until == run.created_at + timedelta(hours=1)


async def test_a_job_of_an_activity_runs_in_the_queue_of_that(
    store: Store, client: Client, desk: Desk
) -> None:
    async with working(desk.app, store):
        handle = await client.start(desk.train, 4)
        assert await handle.result("60s") == 8
    assert (await handle.get()).queue == "gpu"
    types = [each.event.type for each in await handle.log()]
    assert "ActivityScheduled" in types


async def test_a_workflow_calls_jobs_as_steps_and_activities(
    store: Store, client: Client, desk: Desk
) -> None:
    async with working(desk.app, store):
        handle = await client.start(desk.both, "ann")
        assert await handle.result("60s") == [["ann: hi"], 4]
    types = {each.event.type for each in await handle.log()}
    assert {"StepCompleted", "ActivityCompleted"} <= types
    assert "ChildStarted" not in types
    assert await desk.train(3) == 6, "outside of a workflow the call is an ordinary one"


async def test_many_runs_are_started_together(store: Store, client: Client, desk: Desk) -> None:
    handles = await client.start_many(
        desk.send, [(Mail("ann"), "1"), (Mail("bob"), "2", 2)], keys=["a", "b"]
    )
    handles += await client.start_many(desk.send, [{"mail": {"to": "eve"}, "text": "3"}])
    async with working(desk.app, store):
        results = [await each.result("60s") for each in handles]
    assert results == [["ann: 1"], ["bob: 2", "bob: 2"], ["eve: 3"]]


async def test_limits_and_rules_hold_for_jobs(store: Store, client: Client, desk: Desk) -> None:
    await client.start(desk.once, "ann")
    with pytest.raises(RunActive):
        await client.start(desk.once, "ann")
    await client.start(desk.once, "bob")
    async with working(desk.app, store):
        handles = await client.start_many(desk.alone, [(number,) for number in range(5)])
        assert [await each.result("60s") for each in handles] == list(range(5))
    assert desk.most_at_once == 1


@pytest.mark.parametrize("kind", ["step", "activity"])
async def test_limits_of_a_job_hold_for_its_calls_in_workflows(
    store: Store, client: Client, kind: str
) -> None:
    """Also beside runs that are started of it, and for each value of a key."""
    app, busy, most = App("limited"), Counter[str](), Counter[str]()

    async def ask(partner: str, number: int = 0, *, late: bool = False) -> str:
        busy[partner] += 1
        busy["all"] += 1
        for each in (partner, "all"):
            most[each] = max(busy[each], most[each])
        await asyncio.sleep(0.02)
        busy[partner] -= 1
        busy["all"] -= 1
        if number < 0:
            raise ValueError(f"{number} for {partner}")
        return f"{partner} {number} {late}"

    fn: Any = ask if kind == "step" else app.activity(retry=Retry.NEVER)(ask)
    own: Any = {"retry": Retry.NEVER} if kind == "step" else {}
    job: Any = app.job(concurrency=[Limit(1, key="input.partner"), Limit(2)], **own)(fn)

    @app.workflow
    async def crowd(ctx: Context) -> list[Any]:
        calls = [job(partner, number) for partner in "abc" for number in range(2)]
        calls += [job(partner="d", late=True), job("d")]
        with pytest.raises(CallFailed, match="-1 for e"):
            await job("e", number=-1)
        with pytest.raises(TypeError, match="missing a required argument"):
            await job()
        return await asyncio.gather(*calls)

    async with working(app, store):
        handles = await client.start_many(job, [(partner, 7) for partner in "abc"])
        found = await client.run(crowd, wait="60s")
        assert [await each.result("60s") for each in handles] == [f"{p} 7 False" for p in "abc"]
    assert found == [f"{p} {n} False" for p in "abc" for n in range(2)] + ["d 0 True", "d 0 False"]
    assert most.pop("all") == 2
    assert set(most.values()) == {1}
    assert await job("f") == "f 0 False", "outside of a workflow the call is an ordinary one"


async def test_what_a_job_does_not_take_is_refused_before_a_run_exists(
    store: Store, client: Client, desk: Desk
) -> None:
    bad: list[tuple[Any, tuple[Any, ...], Any, type[Exception], str]] = [
        (desk.send, (), None, InvalidInput, "input of send: missing a required argument: 'mail'"),
        (
            desk.send,
            (Mail("a"), 3),
            None,
            InvalidInput,
            r"Expected `str`, got `int` - at `\$.text`",
        ),
        (desk.send, (Mail("a"), "b", 1, 2), None, InvalidInput, "too many positional arguments"),
        (desk.send, (), {"text": "a"}, InvalidInput, "missing required field `mail`"),
        (desk.send, (), {"body": "a"}, InvalidInput, "unknown field `body`"),
        (desk.send, (Mail("a"),), {"text": "a"}, TypeError, "either arguments or input="),
        (desk.both, ("a", "b"), None, TypeError, "one input, not 2: make them the fields of a d"),
        ("send", ("a", "b"), None, TypeError, "by name takes .* arguments of a job as an object"),
        (desk.alone, (), 3, InvalidInput, r"a tuple of them in their order: \(number,\)"),
        (desk.send.definition, ("a",), None, ConfigurationError, "with @app.job"),
    ]
    for job, args, input, error, message in bad:
        with pytest.raises(error, match=message):
            await client.start(job, *args, input=input)
        if not args:
            with pytest.raises(error, match=message):
                await client.start_many(job, [input])
    assert await names_of_runs(store) == []


async def test_a_job_is_started_by_its_name_where_its_code_is_not(
    store: Store, client: Client, desk: Desk
) -> None:
    async with working(desk.app, store):
        handle = await client.start("jobs/send", {"mail": {"to": "ann"}, "text": "hi"})
        assert await handle.result("60s") == ["ann: hi"]
        assert await client.run("clean_up", {}, wait="60s") == 30
        assert await client.run("clean_up", wait="60s") == 30


async def test_a_job_that_is_started_by_its_name_has_the_options_of_its_code(
    store: Store, client: Client, desk: Desk
) -> None:
    """From each caller that does not have the code; its workers serve the queue of the job."""
    office = App("office")

    @office.workflow
    async def ask(ctx: Context) -> str:
        return await ctx.child("jobs/shrink", {"path": "child.png"}, type=str)

    desk.sent += ["no", "failures"]
    async with (
        working(desk.app, store),
        working(office, store),
        Server(store=store, auth=KeyAccess("k" * 32), hosts=["here"]) as server,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(server),
            base_url="http://here",
            headers={"Authorization": f"Bearer {'k' * 32}"},
        ) as http,
    ):
        path = {"path": "a.png"}
        run_ids = [(await client.start("jobs/shrink", path)).run_id]
        run_ids += [each.run_id for each in await client.start_many("shrink", [path, path])]
        answer = await http.post("/v1/workflows/shrink/runs?app=jobs", json={"input": path})
        run_ids.append(UUID(answer.json()["run_id"]))
        assert await client.run(ask, wait="60s") == "small-child.png in attempt 1"
        await client.schedules.create("jobs/hourly", "jobs/shrink", "@hourly", input=path)
        tick = await client.schedules.trigger("jobs/hourly")
        assert tick.run_id is not None
        run_ids.append(tick.run_id)
        await client.topics.subscribe("pictures", workflow="jobs/shrink")
        await client.topics.publish("pictures", path)
        for run_id in run_ids:
            assert (await client.runs.wait(run_id, "60s")).output == "small-a.png in attempt 1"
        runs = (await client.runs.list(names="jobs/shrink")).runs
        found = {(run.queue, run.priority, run.retention_seconds) for run in runs}
        limits = {run.deadline_at and run.deadline_at - run.created_at for run in runs}
    assert (len(runs), found, limits) == (7, {("media", 1, 86_400)}, {timedelta(hours=1)})


async def test_a_run_that_waits_survives_a_new_parameter_with_a_default(
    store: Store, client: Client
) -> None:
    old, new = App("jobs"), App("jobs", retry=Retry(attempts=3, base=0))
    seen = list[str]()

    @old.job
    def greet(name: str) -> str:
        return name

    @new.job(name="greet")
    def greet_more(name: str, greeting: str = "hello") -> str:
        if not seen:
            seen.append(name)
            raise OSError
        return f"{greeting} {name}"

    handle = await client.start(greet, "ann")
    async with working(new, store):
        assert cast(str, await handle.result("60s")) == "hello ann"
        # What the log has of the attempt that failed fits a call with one argument.
        retried = [each for each in await handle.log() if each.event.type == "StepRetryScheduled"]
        assert len(retried) == 1


async def test_a_schedule_starts_a_job(store: Store, client: Client, desk: Desk) -> None:
    desk.app.schedule(desk.clean_up, "@yearly")
    desk.app.schedule(desk.clean_up, "@yearly", name="week", input={"days": 7})
    desk.app.schedule(desk.train, "@yearly", input={"rounds": 2})
    async with working(desk.app, store):
        outputs: dict[str, object] = {}
        for name in ("jobs/clean_up", "jobs/week", "jobs/train"):
            tick = await client.schedules.trigger(name)
            assert tick.run_id is not None
            outputs[name] = (await client.runs.wait(tick.run_id, "60s")).output
    assert outputs == {"jobs/clean_up": 30, "jobs/week": 7, "jobs/train": 4}


async def test_a_job_is_started_over_http(store: Store, desk: Desk) -> None:
    async with (
        working(desk.app, store),
        Server(store=store, auth=KeyAccess("k" * 32), app=desk.app, hosts=["here"]) as server,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(server),
            base_url="http://here",
            headers={"Authorization": f"Bearer {'k' * 32}"},
        ) as http,
    ):
        body = {"input": {"mail": {"to": "ann"}, "text": "hi"}}
        started = await http.post("/v1/workflows/send/runs?wait=30", json=body)
        assert (started.status_code, started.json()["output"]) == (201, ["ann: hi"])
        body = {"input": {"mail": {"to": "ann"}, "text": 7}}
        refused = await http.post("/v1/workflows/send/runs", json=body)
        assert (refused.status_code, "$.text" in refused.text) == (422, True)
        shown = (await http.get("/v1/workflows/send")).json()
        assert shown["about"] == "Send a mail."
        schema = shown["input_schema"]["$defs"]["send"]
        assert (list(schema["properties"]), schema["required"]) == (
            ["mail", "text", "copies"],
            ["mail", "text"],
        )


async def test_the_sync_client_starts_jobs_in_a_schema_of_another_name(
    elsewhere: DatabaseServer, desk: Desk
) -> None:
    schema = elsewhere.schema

    def start(url: str) -> list[str]:
        with SyncClient(url, schema=schema) as client:
            handle = client.start(desk.send, Mail("ann"), "hi", key="k")
            (again,) = client.start_many(desk.send, [(Mail("ann"), "hi")], keys=["k"])
            assert again.already_existed
            assert client.run(desk.train, 2, wait="60s") == 4
            return handle.result("60s")

    with elsewhere.database() as url:
        store = PostgresStore(url, schema=schema)
        await store.open()
        async with working(desk.app, store):
            assert await asyncio.to_thread(start, url) == ["ann: hi"]
        await store.close()
