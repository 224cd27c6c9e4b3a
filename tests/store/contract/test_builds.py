"""Builds: which code new runs of pinned workflows get, and stay with."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest
from clocks import Clock

from holdfast import App, Context, Singleton
from holdfast.client.run import Run
from holdfast.errors import InvalidInput
from holdfast.insight.builds import check_builds
from holdfast.insight.why.explain import explain_run
from holdfast.store.port import Store
from holdfast.types import (
    OPEN_STATES,
    DeclaredRules,
    Finish,
    Fork,
    Notice,
    RouteChange,
    RunFilter,
    StartRules,
    WorkerInfo,
)
from holdfast.worker.clock import EngineClock
from holdfast.worker.services import app_sign_on
from holdfast.worker.services.service import ServiceContext

from .actors import ManualWorker, get, new_run, start
from .commands import child, failed
from .test_continue import go_on
from .test_limits import workflow_limit

BUY = "shop/buy@1"
SHIP = "shop/ship@1"
OLD, NEW = (BUY, f"{BUY}+b1", f"{SHIP}+b1"), (BUY, SHIP, f"{BUY}+b2")


async def two_builds(store: Store, clock: Clock) -> None:
    """Two builds of the shop have had workers; the first one is current."""
    await store.declare_build("shop", "b1", [BUY, SHIP])
    await clock.advance(1)
    await store.declare_build("shop", "b2", [BUY])


async def buy(store: Store, name: str = "shop/buy", **fields: Any) -> str | None:
    """Start a run; return the build that it stays with."""
    return (await get(store, await start(store, name=name, **fields))).build


async def of(store: Store, build: str) -> tuple[bool, float | None, int, int, bool]:
    [found] = [each for each in await store.list_builds("shop") if each.build == build]
    return (
        found.is_current,
        found.ramp_percent,
        found.open_runs,
        found.workers,
        found.safe_to_stop,
    )


async def test_a_run_stays_with_the_build_that_was_current_at_its_start(
    store: Store, ann: ManualWorker, bob: ManualWorker, clock: Clock
) -> None:
    await two_builds(store, clock)
    first = await start(store, name="shop/buy")
    assert await store.promote_build("shop", "b2") == RouteChange("changed", "b1")
    second = await start(store, name="shop/buy")
    assert await bob.claims(handlers=NEW) == [second]
    task = await ann.take(handlers=OLD)
    assert (task.run_id, task.name, task.version) == (first, "shop/buy", 1)
    await ann.suspend(task, awaiting=("paid",))
    await store.cancel_runs([first])  # what wakes it does not change its build
    assert await bob.claims(handlers=NEW) == []
    assert await ann.claims(handlers=OLD) == [first]
    assert (await get(store, first)).handler == f"{BUY}+b1"


async def test_what_is_not_pinned_has_no_build(
    store: Store, ann: ManualWorker, clock: Clock
) -> None:
    """Other apps, other workflows, versions that the build lacks, workflows it does not pin."""
    await two_builds(store, clock)
    assert await buy(store, "shop/other") is None
    assert await buy(store, "bar/buy") is None
    assert await buy(store, version=2) is None
    assert await buy(store, "shop/ship") == "b1"
    await store.promote_build("shop", "b2")
    assert await buy(store, "shop/ship") is None
    assert len(await ann.claims(handlers=["bar/buy@1", "shop/other@1", SHIP, "shop/buy@2"])) == 4


async def test_runs_from_before_the_first_build_are_for_all_workers(
    store: Store, ann: ManualWorker
) -> None:
    early = await start(store, name="shop/buy")
    await store.declare_build("shop", "b1", [BUY])
    late = await start(store, name="shop/buy")
    assert await ann.claims(handlers=[BUY]) == [early]
    assert await ann.claims(handlers=[f"{BUY}+b1"]) == [late]


async def test_runs_are_listed_and_counted_by_build(store: Store, clock: Clock) -> None:
    """Open and ended, alone and with other conditions, page by page."""
    await two_builds(store, clock)
    ended, waits, ship = [
        await start(store, name=name) for name in ("shop/buy", "shop/buy", "shop/ship")
    ]
    await store.promote_build("shop", "b2")
    other, unpinned = await start(store, name="shop/buy"), await start(store, name="shop/other")
    await store.cancel_runs([ended])
    await store.pause_runs([waits, ship])

    async def listed(build: str | None, **where: Any) -> set[UUID]:
        found, cursor = set[UUID](), None
        while True:
            asked = RunFilter(build=build, limit=2, cursor=cursor, **where)
            page = await store.list_runs(asked)
            found |= {run.run_id for run in page.runs}
            if (cursor := page.cursor) is None:
                return found

    assert await listed("b1") == {ended, waits, ship}
    assert await listed("b2") == {other}
    assert await listed("b9") == set()
    assert await listed(None) == {ended, waits, ship, other, unpinned}
    assert await listed("b1", states=OPEN_STATES) == {waits, ship}
    assert await listed("b1", states=("cancelled",)) == {ended}
    assert await listed("b1", states=("paused", "cancelled")) == {ended, waits, ship}
    assert await listed("b2", states=("queued",)) == {other}
    assert await listed("b2", states=("waiting",)) == set()
    assert await listed("b1", names=("shop/ship",)) == {ship}
    assert await listed("b1", names=("shop/ship",), states=("failed",)) == set()
    counted = await store.count_runs_by("state", RunFilter(build="b1", limit=100))
    assert counted.counts == {"paused": 2, "cancelled": 1}
    await store.move_to_build([waits], "b2")
    assert await listed("b2", states=OPEN_STATES) == {waits, other}


async def test_every_kind_of_start_gets_a_build(
    store: Store, ann: ManualWorker, clock: Clock
) -> None:
    await two_builds(store, clock)
    many = [new_run(name="shop/buy") for _ in range(3)]
    await store.start_runs(many)
    rules = StartRules(debounce_seconds=5.0, debounce_key="input")
    await store.declare_start_rules([DeclaredRules("shop/ship", 1, rules)])
    ruled = new_run(name="shop/ship", input="1")
    await store.start_runs([ruled])
    found = await store.get_runs([each.run_id for each in (*many, ruled)])
    assert {each.build for each in found.values()} == {"b1"}
    await store.promote_build("shop", "b2")  # which does not pin it: the start has not begun
    await store.start_runs([new_run(name="shop/ship", input="1")])
    await clock.advance(5)
    assert (await get(store, ruled.run_id)).build is None
    assert await ann.claims(handlers=[SHIP]) == [ruled.run_id]


async def test_children_have_the_build_of_their_parent_successors_the_current_one(
    store: Store, ann: ManualWorker, clock: Clock
) -> None:
    await two_builds(store, clock)
    parent = await start(store, name="shop/buy")
    await store.promote_build("shop", "b2")
    same, ship, bar, new_id, unpinned = (uuid4() for _ in range(5))
    await ann.command(
        await ann.take(handlers=OLD),
        child(same, "1", workflow_name="shop/buy"),
        child(ship, "2", workflow_name="shop/ship"),
        child(bar, "3", workflow_name="bar/buy"),
    )
    found = await store.get_runs([same, ship, bar])
    assert [found[each].build for each in (same, ship, bar)] == ["b1", "b1", None]
    [task] = [each for each in (await ann.claim(handlers=OLD)).tasks if each.run_id == same]
    await go_on(ann, task, new_id)
    assert (await get(store, new_id)).build == "b2"
    await start(store, name="shop/other")
    await ann.command(
        await ann.take(handlers=["shop/other@1"]), child(unpinned, workflow_name="shop/buy")
    )
    assert (await get(store, unpinned)).build == "b2"
    assert parent != same


async def test_a_retry_has_the_build_of_its_origin_which_can_be_moved(
    store: Store, ann: ManualWorker, clock: Clock
) -> None:
    await two_builds(store, clock)
    run_id = await start(store, name="shop/buy")
    task = await ann.take(handlers=OLD)
    await ann.commit(task, failed(), then=Finish("failed", error='{"kind":"E","message":"m"}'))
    await store.promote_build("shop", "b2")
    retry, again = uuid4(), uuid4()
    await store.fork_run(Fork(run_id=run_id, new_run_id=retry, retry=True))
    assert (await get(store, retry)).build == "b1"
    assert await ann.claims(handlers=[f"{BUY}+b1"]) == [retry]
    assert (await store.move_to_build([run_id], "b2")).outcomes == {run_id: "moved"}
    await store.fork_run(Fork(run_id=run_id, new_run_id=again, retry=True))
    assert await ann.claims(handlers=[f"{BUY}+b2"]) == [again]


async def test_routes_change_and_roll_back(store: Store, clock: Clock) -> None:
    await two_builds(store, clock)
    assert await store.promote_build("shop", "b1") == RouteChange("same", "b1")
    assert (await store.promote_build("shop", "b9")).outcome == "unknown"
    assert (await store.promote_build("bar", "b1")).outcome == "unknown"
    assert (await store.ramp_build("shop", "b9", 5)).outcome == "unknown"
    assert (await store.ramp_build("shop", "b1", 5)).outcome == "current"
    assert (await store.ramp_build("shop", "b2", 0)).outcome == "same"
    assert (await store.ramp_build("shop", "b2", 12.5)).outcome == "changed"
    assert (await store.ramp_build("shop", "b2", 12.5)).outcome == "same"
    assert await of(store, "b2") == (False, 12.5, 0, 0, False)
    assert await store.roll_back_build("shop") == RouteChange("ramp", "b2", "b1")
    assert await of(store, "b2") == (False, None, 0, 0, True)
    await store.ramp_build("shop", "b2", 100)
    assert await buy(store) == "b2"
    assert (await store.ramp_build("shop", "b2", 0)).outcome == "changed"
    assert await buy(store) == "b1"
    await store.ramp_build("shop", "b2", 50)
    assert await store.promote_build("shop", "b2") == RouteChange("changed", "b1")
    assert await of(store, "b2") == (True, None, 1, 0, False)
    assert await store.roll_back_build("shop") == RouteChange("changed", "b2", "b1")
    assert await store.roll_back_build("shop") == RouteChange("changed", "b1", None)
    assert await buy(store) is None
    assert await store.roll_back_build("shop") == RouteChange("none")
    await store.declare_build("shop", "b1", [BUY])  # a worker that starts promotes nothing then
    assert await buy(store) is None
    assert await store.promote_build("shop", "b2") == RouteChange("changed")
    assert await store.roll_back_build("shop") == RouteChange("changed", "b2", None)
    assert await store.roll_back_build("bar") == RouteChange("none")


async def test_a_build_that_is_promoted_before_its_workers_is_waited_for(
    store: Store, ann: ManualWorker
) -> None:
    assert await store.promote_build("shop", "b0", force=True) == RouteChange("changed")
    assert await buy(store) is None  # nobody knows yet what it pins
    await store.declare_build("shop", "b1", [BUY])
    await store.promote_build("shop", "b1")
    assert await store.promote_build("shop", "b2", force=True) == RouteChange("changed", "b1")
    assert await buy(store) == "b2"
    [info] = [each for each in await store.list_builds() if each.build == "b2"]
    assert (info.signed_on_at, info.pinned) == (None, (BUY,))
    await store.declare_build("shop", "b2", [BUY, SHIP])
    [info] = [each for each in await store.list_builds() if each.build == "b2"]
    assert (info.signed_on_at is None, info.pinned) == (False, (BUY, SHIP))


async def test_a_build_is_known_from_its_first_worker_or_its_promotion(
    store: Store, clock: Clock
) -> None:
    await store.declare_build("shop", "b1", [BUY])
    await store.promote_build("shop", "b2", force=True)
    before = {each.build: each.first_known_at for each in await store.list_builds("shop")}
    await clock.advance(60)
    for build in ("b1", "b2"):
        await store.declare_build("shop", build, [BUY])
    after = await store.list_builds("shop")
    assert {each.build: each.first_known_at for each in after} == before
    signed = [(each.signed_on_at or 0) - each.first_known_at for each in after]
    assert all(span >= 60_000_000 for span in signed)


@pytest.mark.parametrize("build", ["b1", "b2", "b9"])
async def test_a_share_is_refused_outside_of_0_to_100(
    store: Store, clock: Clock, build: str
) -> None:
    await two_builds(store, clock)
    for percent in (101, -1, float("nan"), float("inf")):
        with pytest.raises(InvalidInput, match="a share of new runs is from 0 to 100 percent"):
            await store.ramp_build("shop", build, percent)
    assert (await store.ramp_build("shop", "b2", 0)).outcome == "same"


async def test_a_ramp_is_decided_by_the_ids_of_runs(store: Store, clock: Clock) -> None:
    """The same runs in each store; a larger share has those of a smaller one."""
    await two_builds(store, clock)
    for percent, numbers in ((10.0, range(200)), (30.0, range(200, 400))):
        await store.ramp_build("shop", "b2", percent)
        await store.start_runs([new_run(name="shop/buy", run_id=UUID(int=n)) for n in numbers])
        found = await store.get_runs([UUID(int=n) for n in numbers])
        drawn = {run_id.int for run_id, run in found.items() if run.build == "b2"}
        places = {n: sha256(UUID(int=n).bytes).digest()[:4] for n in numbers}
        limit = int(percent / 100 * 2**32)
        assert drawn == {n for n in numbers if int.from_bytes(places[n], "big") < limit}


async def test_runs_are_moved(
    store: Store, ann: ManualWorker, bob: ManualWorker, clock: Clock
) -> None:
    await two_builds(store, clock)
    waiting, held, ship, bar, other = [
        await start(store, name=name)
        for name in ("shop/buy", "shop/buy", "shop/ship", "bar/buy", "shop/other")
    ]
    first, second = (await ann.claim(handlers=[f"{BUY}+b1"])).tasks
    task = second if first.run_id == waiting else first
    await ann.suspend(first if task is second else second, awaiting=("paid",))
    nobody, asked = uuid4(), [waiting, held, ship, bar, other]
    moved = await store.move_to_build([*asked, nobody, held], "b2")
    assert moved.outcomes == {
        waiting: "moved",
        held: "moved",
        ship: "unfit",
        bar: "unknown",
        other: "unfit",
        nobody: "missing",
    }
    assert list(moved.notices) == [Notice("work", "default")]
    assert (await store.move_to_build([held], "b2")).outcomes == {held: "same"}
    await ann.suspend(task, until=0)  # it has the run until it waits
    assert await ann.claims(handlers=[f"{BUY}+b1"]) == []
    assert await bob.claims(handlers=[f"{BUY}+b2"]) == [held]
    assert await store.runs_of_build("shop", "b2") == sorted([waiting, held])
    assert await store.runs_of_build("shop", "b2", after=min(waiting, held), limit=1) == [
        max(waiting, held)
    ]
    assert (await store.move_to_build([waiting], None)).outcomes == {waiting: "moved"}
    await store.cancel_runs([waiting])
    assert await bob.claims(handlers=[BUY]) == [waiting]


async def test_a_run_whose_build_has_no_worker_says_so(store: Store, clock: Clock) -> None:
    await two_builds(store, clock)
    run_id = await start(store, name="shop/buy")
    worker = WorkerInfo(
        worker_id="ann",
        hostname="h",
        pid=1,
        queues=("default",),
        handlers=NEW,
        concurrency=1,
        holdfast_version="1",
    )
    await store.heartbeat(worker, [], lease_seconds=30)
    why = await explain_run(store, await get(store, run_id))
    assert "it stays with build b1, and no live worker of that build serves" in why.because
    assert [each.do for each in why.actions] == ["start_worker", "move_build"]
    [finding] = await check_builds(store)
    assert (finding.level, finding.message) == (
        "warn",
        "no live worker of build b1 of app shop (1 open run)",
    )
    old = msgspec.structs.replace(worker, worker_id="bob", handlers=OLD)
    await store.heartbeat(old, [], lease_seconds=30)
    assert [each.level for each in await check_builds(store)] == ["ok"]
    assert await of(store, "b1") == (True, None, 1, 1, False)


async def test_a_stuck_run_names_its_build_and_its_move(
    store: Store, ann: ManualWorker, clock: Clock
) -> None:
    await two_builds(store, clock)
    run_id = await start(store, name="shop/buy")
    task = await ann.take(handlers=OLD)
    await hear(store, ann=OLD)
    await ann.release(task, visible_at=await store.now() + 300_000_000, stuck="no such step")
    why = await explain_run(store, await get(store, run_id))
    assert "it stays with build b1: only workers of that build continue it" in why.details
    assert [each.do for each in why.actions] == ["move_build", "resume", "terminate"]
    assert Run(await get(store, run_id)).build == "b1"


async def hear(store: Store, **handlers: tuple[str, ...]) -> None:
    """Let workers be heard of that have these handlers."""
    for name, each in handlers.items():
        worker = WorkerInfo(
            worker_id=name,
            hostname="h",
            pid=1,
            queues=("default",),
            handlers=each,
            concurrency=1,
            holdfast_version="1",
        )
        await store.heartbeat(worker, [], lease_seconds=30)


async def test_what_only_old_workers_serve_keeps_them(
    store: Store, ann: ManualWorker, clock: Clock
) -> None:
    """A version and a workflow that the new build dropped, an activity; not what both have."""
    await two_builds(store, clock)
    await store.promote_build("shop", "b2")
    old = (*OLD, "shop/remind@1", "shop/pack@0", "shop/idle@1")
    await hear(store, ann=old, bob=NEW)
    assert await of(store, "b1") == (False, None, 0, 1, True)
    await start(store, name="shop/other")  # nobody has it
    await start(store, name="shop/buy", version=1)  # pinned to b2
    run_id = await start(store, name="shop/remind")
    for needed in ("shop/remind@1", "shop/remind@1"):  # waiting, and with a worker
        [b2, b1] = await store.list_builds("shop")
        assert (b1.build, b1.needed_for, b1.safe_to_stop) == ("b1", (needed,), False)
        assert b2.needed_for == ()
        await ann.claims(handlers=["shop/remind@1"])
    await hear(store, bob=(*NEW, "shop/remind@1"))
    assert await of(store, "b1") == (False, None, 0, 1, True)
    await hear(store, bob=NEW)
    await store.terminate_runs([run_id])
    assert await of(store, "b1") == (False, None, 0, 1, True)


def shop(build: str | None, limit: int, *, more: bool = False) -> App:
    """Return a shop whose builds declare different things of one workflow."""
    app = App("shop", build=build)
    app.queue("default", concurrency=limit)
    rule = None if limit == 5 else Singleton()

    @app.workflow(pinned=True, retention=f"{limit}d", singleton=rule)
    async def buy(ctx: Context) -> None: ...

    if more:

        @app.workflow(singleton=Singleton())
        async def extra(ctx: Context) -> None: ...

    return app


async def test_the_current_build_declares_while_it_has_workers(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_sign_on, "_DECLARES_EVERY", 0.0)

    def signer(build: str | None, limit: int, *, more: bool = False) -> app_sign_on.AppSignOn:
        context = ServiceContext(store, "w", EngineClock(), list[Notice]().extend, 60.0)
        return app_sign_on.AppSignOn(context, shop(build, limit, more=more), None)

    async def declared() -> tuple[int | None, set[str], float | None]:
        [limit] = await store.list_limits()
        rules = {each.name for each in await store.list_start_rules()}
        run = await get(store, await start(store, name="shop/buy", version=9))
        await store.terminate_runs([run.run_id])
        return limit.rule.most, rules, run.retention_seconds

    b1, b2 = signer("b1", 1), signer("b2", 5, more=True)
    first = (1, {"shop/buy"}, 86_400.0)
    second = (5, {"shop/extra"}, 5 * 86_400.0)
    await b1.sign_on()
    assert await declared() == first
    live = {"ann": (f"{BUY}+b1",), "bob": (f"{BUY}+b2",)}
    await hear(store, **live)
    await b2.sign_on()
    assert await declared() == (1, {"shop/buy", "shop/extra"}, 86_400.0)  # what is new counts
    await store.promote_build("shop", "b2")
    await b1.run_once()
    await b2.run_once()
    assert await declared() == second
    for late in (b1, signer("b1", 1), signer(None, 1)):
        await late.sign_on()
        await late.run_once()
        assert await declared() == second
    await store.roll_back_build("shop")
    await b2.run_once()
    await b1.run_once()
    assert await declared() == (1, {"shop/buy", "shop/extra"}, 86_400.0)
    await clock.advance(60)  # nobody is left of the current build
    await b2.run_once()
    assert await declared() == second


async def test_builds_that_nothing_needs_are_forgotten(store: Store, clock: Clock) -> None:
    await two_builds(store, clock)
    await buy(store)
    await store.declare_build("shop", "b3", [BUY])
    await store.promote_build("shop", "b3")
    await store.declare_build("bar", "b9", [])
    await clock.advance(31 * 86_400)
    await store.declare_build("shop", "b4", [BUY])
    assert {each.build for each in await store.list_builds("shop")} == {"b1", "b3", "b4"}
    assert [each.build for each in await store.list_builds()] == ["b9", "b4", "b3", "b1"]


async def test_a_pause_and_a_limit_of_a_workflow_concern_pinned_runs(
    store: Store, ann: ManualWorker, clock: Clock
) -> None:
    await two_builds(store, clock)
    await store.set_limit(workflow_limit(1))
    for _ in range(2):
        await buy(store)
    await store.set_pause("workflow", "shop/buy", paused=True)
    assert await ann.claims(handlers=OLD) == []
    await store.set_pause("workflow", "shop/buy", paused=False)
    assert len(await ann.claims(handlers=OLD)) == 1


async def test_two_places_have_builds_also_after_the_clock_was_set_back(
    store: Store, clock: Clock, tmp_path: Path
) -> None:
    """Fault: the app had signed on later than all builds, as if code without a build had."""
    await clock.advance(3600)
    for place, build in (("here", "b1"), ("here", "b1"), ("there", "b2"), ("here", "b1")):
        folder = tmp_path / place
        folder.mkdir(exist_ok=True)
        context = ServiceContext(store, "w", EngineClock(), list[Notice]().extend, 60.0)
        await app_sign_on.AppSignOn(context, App("shop", build=build), str(folder)).sign_on()
        await clock.advance(-600)
    [app] = await store.list_apps()
    assert {each.signed_on_at for each in await store.list_builds()} == {app.signed_on_at}
