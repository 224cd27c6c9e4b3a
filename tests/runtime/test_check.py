"""What a check makes of the runs of a store, and of exported logs, broken ones among them."""

from __future__ import annotations

import asyncio
import json
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pydantic
import pytest

from holdfast import App, Client, Context, Retry, current_activity
from holdfast.errors import RunFailed, UnknownWorkflow
from holdfast.events import STEP_COMPLETED
from holdfast.insight.check import Check, CheckReport, Part, merged
from holdfast.insight.replayable import info_of
from holdfast.payloads import AesGcm
from holdfast.retention.reading import write_run
from holdfast.runtime.turn.rehearsal import rehearse
from holdfast.store.memory import MemoryStore
from holdfast.testing import Environment
from holdfast.worker import WorkerOptions

KEY = bytes(range(32))
Change = Callable[[Any], Any]


def shop(
    name: str = "pay", *, payload_codec: AesGcm | None = None, build: str | None = None
) -> App:
    """An app whose step has this name; with a build, its orders are pinned."""
    app = App("shop", payload_codec=payload_codec, build=build)

    async def fn(ctx_now: str, item: str) -> str:
        return item

    step = app.step(name=name)(fn)

    @app.workflow(pinned=build is not None)
    async def order(ctx: Context, item: str) -> str:
        receipt = await step(ctx.now().isoformat(), item)
        await ctx.wait_for_signal("packed")
        return await step(receipt, "again")

    @app.workflow
    async def wait(ctx: Context) -> None:
        await asyncio.sleep(3600)

    shopping = app.flow("shopping", input=str)

    @shopping.step
    async def list_all(run: str) -> str:
        return run

    return app


async def paid(app: App, count: int = 1) -> tuple[MemoryStore, list[UUID]]:
    """Runs that have paid and wait; and one of another workflow, and one of a flow."""
    async with Environment(app, replay=False) as env:
        started = [await env.client.start("order", f"lamp {number}") for number in range(count)]
        await env.client.start("wait")
        await env.wait_until_idle()
        await env.client.start("shopping", "all")
    return env.store, [each.run_id for each in started]


async def checked(app: App, store: MemoryStore, *names: str, **options: Any) -> CheckReport:
    check = Check(app, names)
    await check.add_open_runs(store, **options)
    return check.report()


async def test_runs_with_the_same_difference_are_one_finding() -> None:
    store, run_ids = await paid(shop(), 3)
    report = await checked(shop("charge"), store)
    [found] = report.findings
    assert (found.kind, found.workflow, found.runs, found.index) == ("stuck", "shop/order@1", 3, 1)
    assert found.run_id in run_ids
    assert sorted(found.run_ids) == sorted(run_ids)
    assert (found.file or "").endswith("test_check.py")
    assert (report.checked, report.unchecked, report.differs) == (4, [], True)
    same = await checked(shop(), store)
    assert (same.checked, same.findings, same.differs) == (4, [], False)


async def test_a_finding_has_the_ids_of_at_most_100_runs() -> None:
    store, run_ids = await paid(shop(), 101)
    parts = [await checked(shop("charge"), store, part=Part(number, 2)) for number in range(2)]
    for report in (await checked(shop("charge"), store), merged(parts)):
        [found] = report.findings
        assert (found.runs, len(set(found.run_ids))) == (101, 100)
        assert {*found.run_ids} < {*run_ids}


async def test_parts_samples_and_workflows_choose_runs() -> None:
    store, _ = await paid(shop(), 5)
    app, told = shop("charge"), list[int]()
    parts = [await checked(app, store, part=Part(number, 3)) for number in range(3)]
    both = merged(parts), await checked(app, store, told=told.append)
    assert [(each.checked, [found.runs for found in each.findings]) for each in both] == [
        (6, [5])
    ] * 2
    assert told == [6]
    assert (await checked(app, store, sample=2)).checked == 3
    assert (await checked(app, store, "wait")).findings == []
    with pytest.raises(UnknownWorkflow, match="ordre"):
        Check(app, ["ordre"])


async def test_runs_that_are_pinned_to_another_build_are_checked_before_they_move() -> None:
    store, _ = await paid(shop(build="b1"), 2)
    for build in ("b2", None):
        other = shop("charge", build=build)
        assert (await checked(other, store)).checked == 1  # the one that is not pinned
        [found] = (await checked(other, store, build="b1")).findings
        assert (found.kind, found.workflow, found.runs) == ("stuck", "shop/order@1", 2)
    same = await checked(shop("charge", build="b1"), store)
    assert [each.runs for each in same.findings] == [2]


async def test_a_fork_is_checked_with_the_clock_of_its_origin() -> None:
    """The step has the time among its arguments."""
    async with Environment(shop(), replay=False) as env:
        await env.advance("1h")
        handle = await env.client.start("order", "lamp")
        await env.advance("1h")
        fork = await env.client.runs.fork(handle.run_id)
        again = await env.client.runs.fork(fork.run_id)
        await env.advance("1h")
    assert again.run_id != handle.run_id
    report = await checked(shop(), env.store)
    assert (report.checked, report.findings) == (3, [])


@pytest.mark.parametrize("failed_steps", [True, False])
async def test_an_ended_retry_need_not_make_the_kept_calls(failed_steps: bool) -> None:
    """With `failed_steps`, what failed succeeds, and the code does not come to the kept call."""
    app, answers = App("shop"), [ConnectionError("no"), None]

    @app.step(retry=Retry.NEVER)
    async def ask() -> None:
        if (error := answers.pop(0)) is not None:
            raise error

    @app.step
    async def pay() -> None: ...

    @app.workflow
    async def order(ctx: Context) -> None:
        [answer] = await asyncio.gather(ask(), return_exceptions=True)
        if answer is not None:
            await pay()
        raise ValueError("closed")

    async with Environment(app, replay=False) as env:
        handle = await env.client.start(order)
        with pytest.raises(RunFailed, match="closed"):
            await env.result(handle)
        retry = await env.client.runs.retry(handle.run_id, failed_steps=failed_steps)
        with pytest.raises(RunFailed, match="closed"):
            await env.result(retry)
        for run_id in (handle.run_id, retry.run_id):
            record = (await env.client.runs.get(run_id)).record
            log = [each.event for each in await env.client.runs.log(run_id)]
            assert (STEP_COMPLETED, "pay") in [(each.type, each.key) for each in log]
            assert rehearse(order, info_of(record, log), log) is None
    assert len(answers) == (0 if failed_steps else 1)


async def test_runs_of_other_apps_are_left_alone_and_removed_workflows_are_named() -> None:
    store, _ = await paid(shop())
    assert (await checked(App("other"), store)).checked == 0
    report = await checked(App("shop"), store)
    assert [(each.kind, each.runs) for each in report.findings] == [("unserved", 1)] * 2
    assert all("@app.workflow(name=" in each.reason for each in report.findings)


@pytest.mark.parametrize("kept", [(2,), (1, 2), ()])
async def test_a_version_of_a_flow_that_was_removed_is_named(kept: tuple[int, ...]) -> None:
    def shopping(*versions: int) -> App:
        app = App("shop")
        for version in versions:
            flow = app.flow("shopping", version=version, input=str)

            @flow.step(start_delay="1h")
            async def list_all(run: str) -> str:
                return run

        return app

    async with Environment(shopping(1), replay=False) as env:
        ended = await env.client.start("shopping", "none")
        await env.client.runs.terminate(ended.run_id)
        for name in ("all", "some"):
            await env.client.start("shopping", name)
        report = await checked(shopping(*kept), env.store)
    lost = [] if 1 in kept else [("unserved", "shop/shopping@1", 2)]
    assert [(each.kind, each.workflow, each.runs) for each in report.findings] == lost
    assert all("app.flow('shopping', version=1)" in each.reason for each in report.findings)
    assert report.checked == 2


async def exported(app: App, store: MemoryStore, run_id: UUID, change: Change | None = None) -> str:
    async with Client(store=store) as client:
        run = (await client.runs.get(run_id)).record
        log = (await store.read_events([(run_id, 0)]))[run_id]
    line = write_run(run, log)
    return line if change is None else json.dumps(change(json.loads(line)), separators=(",", ":"))


def _of_another_app(line: Any) -> Any:
    line["run"]["name"] = "other/order"
    return line


def _of_a_newer_release(line: Any) -> Any:
    line["events"][1]["event_type"] = "StepPondered"
    return line


def _without_its_beginning(line: Any) -> Any:
    del line["events"][0]
    return line


async def test_each_log_that_cannot_be_checked_is_named_and_the_others_are_checked(
    tmp_path: Path,
) -> None:
    locked = shop(payload_codec=AesGcm({"k1": KEY}))
    store, [run_id] = await paid(shop())
    locked_store, [locked_id] = await paid(locked)
    line = await exported(shop(), store, run_id)
    files = {
        "a.jsonl": (line[: len(line) // 2], "cut off"),
        "b.jsonl": ("no json", "cut off, or is not a log"),
        "c.jsonl": (await exported(shop(), store, run_id, _of_another_app), "of app 'other'"),
        "d.jsonl": (await exported(shop(), store, run_id, _of_a_newer_release), "StepPondered"),
        "e.jsonl": (await exported(shop(), store, run_id, _without_its_beginning), "no beginning"),
        "f.jsonl": (await exported(locked, locked_store, locked_id), "encrypted with key k1"),
        "g.jsonl": ("\n", None),
    }
    for name, (text, _) in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "h.jsonl").write_bytes(b"\xff\xfe")
    (tmp_path / "z.jsonl").write_text(f"{line}\n{line}\n")

    check = Check(shop("charge"))
    check.add_files(tmp_path / name for name in (*files, "h.jsonl", "z.jsonl"))
    report = check.report()
    assert [each.runs for each in report.findings] == [2]
    reasons = {Path(each.where.partition(":")[0]).name: each.reason for each in report.unchecked}
    assert reasons.keys() == {*files, "h.jsonl"} - {"g.jsonl"}
    for name, (_, reason) in files.items():
        assert reason is None or reason in reasons[name]
    assert "cannot be read" in reasons["h.jsonl"]

    found = await checked(shop("charge"), locked_store)
    assert ([each.where for each in found.unchecked], found.checked) == ([str(locked_id)], 1)
    opened = Check(shop("charge", payload_codec=AesGcm({"k1": KEY})))
    opened.add_files([tmp_path / "f.jsonl"])
    assert [each.kind for each in opened.report().findings] == ["stuck"]


async def test_an_exported_run_keeps_what_it_waits_for(tmp_path: Path) -> None:
    """Nothing in a log says that its run waits for a signal."""
    async with Environment(parcels("packed"), replay=False) as env:
        handle = await env.client.start("parcel")
        await env.wait_until_idle()
    path = tmp_path / "parcel.jsonl"
    path.write_text(await exported(parcels("packed"), env.store, handle.run_id))
    for signal, kinds in (("packed", []), ("ready", ["held"])):
        check = Check(parcels(signal))
        check.add_files([path])
        assert [each.kind for each in check.report().findings] == kinds
        same = await checked(parcels(signal), env.store)
        assert [each.reason for each in check.report().findings] == [
            each.reason for each in same.findings
        ]


def parcels(signal: str) -> App:
    app = App("parcels")

    @app.workflow
    async def parcel(ctx: Context) -> None:
        def add(article: str) -> None: ...

        ctx.handle_update("add", add)
        await ctx.wait_for_signal(signal)

    return app


async def test_a_renamed_signal_is_found_beside_messages_that_nothing_takes() -> None:
    async with Environment(parcels("packed"), replay=False) as env:
        plain, signalled, updated = [await env.client.start("parcel") for _ in range(3)]
        await env.wait_until_idle()
        await signalled.signal("other")
        asked = asyncio.create_task(updated.update("unknown"))
        await env.wait_until_idle()
        report = await checked(parcels("ready"), env.store)
        [found] = report.findings
        assert (found.kind, found.runs, report.checked) == ("held", 3, 3)
        assert "waits for signal 'packed'" in found.reason
        assert not (await checked(parcels("packed"), env.store)).findings
        await plain.signal("ready")  # the code takes it, and ends
        assert [each.runs for each in (await checked(parcels("ready"), env.store)).findings] == [2]
        asked.cancel()


@pytest.mark.parametrize("waits", ["signal", "sleep", "approval", "twice"])
@pytest.mark.parametrize("after", ["ends", "calls"])
async def test_code_that_waits_for_its_time_is_held_back_where_it_waits(
    waits: str, after: str
) -> None:
    """It gets stuck only when the time is over, with no call of the code left to make."""

    def sales(*, is_new: bool) -> App:
        app = App("sales")

        @app.step
        async def notify() -> None: ...

        @app.step
        async def close() -> None: ...

        @app.workflow
        async def sale(ctx: Context) -> None:
            if not is_new:
                await notify()
            try:
                if waits == "sleep":
                    await asyncio.sleep(86_400)
                elif waits == "approval":
                    await ctx.request_approval("Good?", timeout="14d")
                else:
                    await ctx.wait_for_signal("returned", timeout="14d")
            except TimeoutError:
                if waits == "twice":
                    await asyncio.sleep(60)
            if after == "calls":
                await close()

        return app

    async with Environment(sales(is_new=False), replay=False) as env:
        await env.client.start("sale")
        await env.wait_until_idle()
        assert not (await checked(sales(is_new=False), env.store)).findings
        [found] = (await checked(sales(is_new=True), env.store)).findings
    assert (found.kind, found.index) == ("held", 1)
    assert found.reason.startswith("the code waits here although the log has step notify")
    assert found.reason.endswith("; when its time is over, it gets stuck")
    assert found.line is not None
    line = linecache.getline(__file__, found.line)
    assert {"sleep": "86_400", "approval": "request"}.get(waits, "wait_for_signal") in line


async def test_an_update_that_was_accepted_and_has_no_handler_now_is_found() -> None:
    def amending(name: str) -> App:
        app = App("parcels")

        @app.workflow
        async def parcel(ctx: Context) -> None:
            async def amend() -> None:
                await ctx.wait_for_signal("agreed")

            ctx.handle_update(name, amend)
            await ctx.wait_for_signal("packed")

        return app

    async with Environment(amending("amend"), replay=False) as env:
        handle = await env.client.start("parcel")
        asked = asyncio.create_task(handle.update("amend"))
        await env.wait_until_idle()
        [found] = (await checked(amending("change"), env.store)).findings
        assert (found.kind, found.index) == ("stuck", 1)
        assert found.reason.startswith("update amend was accepted, and the code has no handler")
        assert not (await checked(amending("amend"), env.store)).findings
        asked.cancel()


def clerks(kind: str, wanted: Any) -> tuple[App, Any]:
    """An app whose run has a value of the wanted type in its log, and what makes the run."""
    app = App("clerks")

    async def fn(count: Any) -> None:
        raise OSError("busy")

    fn.__annotations__["count"] = wanted
    if kind == "job":
        return app, app.job(retry=Retry(attempts=2, base="60s"))(fn)

    class Tally:
        async def take(self) -> None: ...

    Tally.__annotations__ = {"count": wanted}
    Tally.count = wanted(1)  # type: ignore[attr-defined]
    return app, app.entity(dataclass(Tally))


def media(wanted: Any) -> App:
    """An app whose run has scheduled an activity; it has no code for it if nothing is wanted."""
    app = App("media")

    async def render(size: Any) -> None: ...

    if wanted is not None:
        render.__annotations__["size"] = wanted
        app.activity(queue="gpu")(render)

    @app.workflow
    async def show(ctx: Context) -> None:
        await ctx.activity("render", 5, queue="gpu")

    return app


class Raising(pydantic.RootModel[int]):
    """A type of which no value can be made."""

    @pydantic.field_validator("root")
    @classmethod
    def check(cls, size: int) -> int:
        raise KeyError(size)


@pytest.mark.parametrize("wanted", [str, Raising, "Unknown"])
async def test_an_open_activity_whose_arguments_do_not_fit_its_code_is_named(wanted: Any) -> None:
    async with Environment(media(None), replay=False) as env:
        await env.client.start("show")
        await env.wait_until_idle()
    report = await checked(media(wanted), env.store)
    [found] = report.findings
    assert (found.kind, found.index, report.differs) == ("held", 1, True)
    assert not report.unchecked
    assert "activity render has not ended, and its arguments do not fit its code" in found.reason
    assert (found.file or "").endswith("test_check.py")
    for fits in (None, int, int | str):
        assert not (await checked(media(fits), env.store)).findings


@pytest.mark.parametrize("limit", [None, "2d"])
async def test_an_activity_that_waits_to_be_completed_from_outside_needs_no_arguments(
    limit: str | None,
) -> None:
    """Another attempt is not to be expected; one beside it that has to begin is named."""

    def press(wanted: Any) -> App:
        app = App("press")

        async def ask(text: Any, first: bool) -> None:
            if not first and current_activity().attempt == 1:
                raise OSError("busy")
            current_activity().complete_later()

        ask.__annotations__["text"] = wanted
        activity = app.activity(start_to_close=limit, retry=Retry(base="60s"))(ask)

        @app.workflow
        async def edit(ctx: Context, how: list[bool]) -> None:
            await asyncio.gather(*(activity("yes", first) for first in how))

        return app

    for how, kinds in (([True, True], []), ([False], ["held"]), ([True, False], ["held"])):
        async with Environment(press(str), replay=False) as env:
            await env.client.start("edit", how)
            await env.advance("1s")
            report = await checked(press(int), env.store)
            assert [each.kind for each in report.findings] == kinds
            await env.advance("2m")
            assert not (await checked(press(int), env.store)).findings


async def test_an_open_activity_whose_arguments_never_fitted_would_fail() -> None:
    async with Environment(
        media(str), options=WorkerOptions(queues=("default",)), replay=False
    ) as env:
        await env.client.start("show")
        await env.wait_until_idle()
        report = await checked(media(str), env.store)
    [found] = report.findings
    assert (found.kind, found.index, report.differs) == ("fails", 1, False)
    assert "activity render has not ended, and would fail at its next attempt" in found.reason


def studio(wanted: Any, *, later: bool = False) -> App:
    """An app whose activity the runs of another call."""
    app = App("studio")

    async def render(size: Any) -> None:
        if later:
            current_activity().complete_later()

    render.__annotations__["size"] = wanted
    app.activity(queue="gpu")(render)
    return app


@pytest.mark.parametrize("waits", ["for its end", "for both", "for a signal"])
async def test_an_open_activity_that_a_run_of_another_app_has_called_is_named(waits: str) -> None:
    show = App("show")

    @show.workflow
    async def evening(ctx: Context) -> None:
        call = ctx.activity("studio/render", 5, queue="gpu")
        if waits == "for a signal":
            await ctx.wait_for_signal("begin")
        elif waits == "for both":
            await asyncio.gather(call, ctx.wait_for_signal("begin"))
        await call

    async with Environment(show, replay=False) as env:
        handle = await env.client.start("evening")
        await env.wait_until_idle()
        report = await checked(studio(str), env.store)
        assert report.checked == 0
        if waits == "for a signal":
            assert not report.findings
            return
        [found] = report.findings
        assert (found.kind, found.workflow, found.index) == ("held", "show/evening@1", 1)
        assert found.run_ids == (handle.run_id,)
        assert "activity render of this app has not ended" in found.reason
        assert (found.file or "").endswith("test_check.py")
        for fits in (int, Any):
            assert not (await checked(studio(fits), env.store)).findings
        assert not (await checked(show, env.store)).findings


async def test_an_activity_for_another_app_that_is_completed_from_outside_needs_no_arguments() -> (
    None
):
    show = App("show")

    @show.workflow
    async def evening(ctx: Context) -> None:
        await ctx.activity("studio/render", 5, queue="gpu")

    async with Environment(show, studio(int, later=True), replay=False) as env:
        await env.client.start("evening")
        await env.wait_until_idle()
        assert not (await checked(studio(str), env.store)).findings


@pytest.mark.parametrize("kind", ["job", "entity"])
async def test_a_finding_of_a_job_or_an_entity_is_at_a_line_of_the_app(kind: str) -> None:
    app, made = clerks(kind, int)
    async with Environment(app, replay=False) as env:
        if kind == "job":
            await env.client.start(made, 1)
            await env.advance(1)
        else:
            await env.client.entity(made, "ann").take()
    [found] = (await checked(clerks(kind, str)[0], env.store)).findings
    assert found.kind == "stuck"
    assert (found.file or "").endswith("test_check.py")


async def test_a_run_that_would_fail_of_a_signal_that_has_come_is_named() -> None:
    def parcels(wrong: bool) -> App:
        app = App("parcels")

        @app.workflow
        async def parcel(ctx: Context) -> None:
            await ctx.wait_for_signal("packed")
            if wrong:
                raise KeyError("rate")

        return app

    async with Environment(parcels(wrong=False), replay=False) as env:
        handle = await env.client.start("parcel")
        await env.wait_until_idle()
    assert not (await checked(parcels(wrong=True), env.store)).findings
    async with Client(store=env.store) as client:
        await client.handle(handle.run_id).signal("packed")
    report = await checked(parcels(wrong=True), env.store)
    [found] = report.findings
    log = (await env.store.read_events([(handle.run_id, 0)]))[handle.run_id]
    assert (found.kind, found.index, report.differs) == ("fails", len(log) - 1, False)
    assert "KeyError" in found.reason
    assert (found.file or "").endswith("test_check.py")
    assert not (await checked(parcels(wrong=False), env.store)).findings


async def test_an_ended_run_is_a_fixture() -> None:
    async with Environment(shop(), replay=False) as env:
        handle = await env.client.start("order", "lamp")
        await handle.signal("packed")
        await env.result(handle)
        run = (await handle.get()).record
        log = (await env.store.read_events([(handle.run_id, 0)]))[handle.run_id]
    for app, kinds in ((shop(), []), (shop("charge"), ["stuck"])):
        check = Check(app)
        check.add(run, log)
        assert [each.kind for each in check.report().findings] == kinds
