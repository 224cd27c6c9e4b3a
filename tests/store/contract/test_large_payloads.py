"""Objects of large payloads are kept for as long as a run needs them, and no longer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import cast
from uuid import UUID, uuid4

import pytest
from clocks import Clock

from holdfast.codec import Reference
from holdfast.errors import InvalidInput
from holdfast.objects import Objects
from holdfast.payloads import delete_unneeded, unneeded
from holdfast.store.port import Store
from holdfast.types import ANY_END, DeclaredRules, Fork, StartRules, UnneededPayloads

from .actors import ManualWorker, get, log, new_run, signal, start
from .commands import child
from .flow_actors import Flows, StepWorker, end, single
from .test_continue import go_on
from .test_flow_runs import run_step

HOUR, DAY = 3600.0, 86_400.0
URL = "s3://bucket/prefix"


def object_of(owner: UUID) -> str:
    """Return a reference to an object of a run."""
    return Reference(URL, owner, 64 * "0", 1_000_000).as_json()


async def own(store: Store, owner: UUID, user: UUID | None = None) -> list[UUID]:
    """Note an object of a run."""
    return await store.own_payloads(URL, [owner], [user])


async def due(store: Store) -> set[UUID]:
    """Return the runs whose objects nobody needs, and forget them."""
    found = await store.due_payloads()
    assert {each.url for each in found} <= {URL}
    await store.forget_payloads(found)
    return {each.owner for each in found}


async def test_objects_go_with_their_run(store: Store, clock: Clock, ann: ManualWorker) -> None:
    run_id = await start(store, retention_seconds=HOUR)
    assert await own(store, run_id) == []
    await clock.advance(2 * DAY)
    assert await due(store) == set()  # the run is there
    await ann.finish(await ann.take(), object_of(run_id))
    await clock.advance(DAY)
    assert await due(store) == set()
    assert (await store.sweep_runs()).deleted == 1
    assert await due(store) == {run_id}
    await clock.advance(2 * DAY)
    assert await due(store) == set()  # forgotten


async def test_a_short_run_keeps_its_objects_for_an_hour_after_the_last_put(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """A start with the same key may just have put one, and is about to create the run again."""
    run_id = await start(store, retention_seconds=0)
    await own(store, run_id)
    await ann.finish(await ann.take())
    assert (await store.sweep_runs()).deleted == 1
    assert await due(store) == set()
    await own(store, run_id)
    await clock.advance(HOUR)
    assert await due(store) == set()  # noted again: a day from then
    await store.start_runs([new_run(run_id=run_id)])
    await clock.advance(DAY)
    assert await due(store) == set()


async def test_objects_of_a_run_that_never_came_go_after_a_day(store: Store, clock: Clock) -> None:
    run_id = uuid4()
    await own(store, run_id)
    await clock.advance(DAY - 1)
    assert await due(store) == set()
    await clock.advance(1)
    assert await due(store) == {run_id}


async def test_while_objects_are_deleted_none_is_added(store: Store, clock: Clock) -> None:
    run_id = uuid4()
    await own(store, run_id)
    await clock.advance(DAY)
    assert await store.due_payloads(lease_seconds=60) == [UnneededPayloads(run_id, URL)]
    assert await store.due_payloads() == []
    assert await own(store, run_id, uuid4()) == [run_id]
    await clock.advance(60)
    assert await store.due_payloads(lease_seconds=60) == [UnneededPayloads(run_id, URL)]
    await clock.advance(60)
    assert await own(store, run_id) == []  # who was to delete them is gone
    await store.forget_payloads([UnneededPayloads(run_id, URL)])  # late: there are new ones
    await clock.advance(DAY)
    assert await due(store) == {run_id}


async def test_a_parent_keeps_what_its_child_returned(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    await start(store, retention_seconds=DAY)
    child_id = uuid4()
    await ann.command(await ann.take(), child(child_id, retention=0.0), awaiting=(ANY_END,))
    await own(store, child_id)
    await ann.finish(await ann.take(), object_of(child_id))
    assert (await store.sweep_runs()).deleted == 1
    await clock.advance(2 * DAY)
    assert await due(store) == set()
    task = await ann.take()
    assert object_of(child_id) in (task.tail[-1].details or "")
    await ann.finish(task)
    await clock.advance(DAY)
    assert (await store.sweep_runs()).deleted == 1
    assert await due(store) == {child_id}


async def test_who_refers_to_an_object_of_another_run_keeps_it(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """As a parent does to the input of its child, which it puts for the child."""
    sender, target = await start(store, retention_seconds=DAY), uuid4()
    await own(store, target, sender)
    await clock.advance(2 * DAY)
    assert await due(store) == set()
    await ann.finish(await ann.take())
    await clock.advance(DAY)
    assert (await store.sweep_runs()).deleted == 1
    assert await due(store) == {target}


async def test_a_fork_keeps_what_its_origin_had_and_used(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    child_id, fork_id = uuid4(), uuid4()
    origin = await start(store, retention_seconds=HOUR)
    await own(store, origin)
    await own(store, child_id, origin)
    await ann.finish(await ann.take())
    fork = Fork(run_id=origin, new_run_id=fork_id)
    assert (await store.fork_run(fork))[0] == "forked"
    await clock.advance(2 * DAY)
    assert (await store.sweep_runs()).deleted == 1
    assert await due(store) == set()
    await ann.finish(await ann.take())
    await clock.advance(HOUR)
    assert (await store.sweep_runs()).deleted == 1
    assert await due(store) == {origin, child_id}


async def test_a_run_that_is_a_step_keeps_its_input(
    flows: Flows, store: Store, clock: Clock, worker: StepWorker, ann: ManualWorker
) -> None:
    """The database makes the input, of what another step of the flow returned."""
    await flows.define(single("a"), run_step("b", "a"))
    flow_id = await flows.start(retention_seconds=0.0)
    await own(store, flow_id)
    await worker.report(end(await worker.one(), output=object_of(flow_id)))
    inner = await ann.take()
    assert inner.input == object_of(flow_id)
    await ann.finish_with(inner, child(uuid4(), parent_close="abandon", retention=0.0))
    assert (await store.sweep_runs()).deleted == 1  # the inner run has a child
    await clock.advance(2 * DAY)
    assert await due(store) == set()
    await ann.finish(await ann.take())
    assert (await store.sweep_runs()).deleted == 2
    assert await due(store) == {flow_id}


async def test_a_debounced_run_keeps_the_input_of_the_last_start(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    rules = StartRules(debounce_seconds=5.0)
    await store.declare_start_rules([DeclaredRules("order", 1, rules)])
    first, second = new_run(), uuid4()
    await store.start_runs([first])
    await own(store, second)
    [started], _ = await store.start_runs([new_run(run_id=second, input=object_of(second))])
    assert started.run_id == first.run_id
    await clock.advance(2 * DAY)
    assert (await get(store, first.run_id)).input == object_of(second)
    assert await due(store) == set()


async def test_wrong_calls_are_refused(store: Store) -> None:
    with pytest.raises(InvalidInput, match="each owner of objects has one user or null"):
        await store.own_payloads(URL, [uuid4()], [])
    with pytest.raises(InvalidInput, match="a limit is 0 or more"):
        await store.due_payloads(limit=-1)


async def test_many_note_the_same_owners_at_once(store: Store, clock: Clock) -> None:
    owners = sorted(uuid4() for _ in range(20))
    calls = [owners if n % 2 else owners[::-1] for n in range(10)]
    await asyncio.gather(*(store.own_payloads(URL, each, [None] * 20) for each in calls))
    await clock.advance(DAY)
    found = [await store.due_payloads(limit=15) for _ in range(3)]
    assert [len(each) for each in found] == [15, 5, 0]


async def test_the_objects_of_owners_that_nobody_needs_are_deleted(
    store: Store, clock: Clock, tmp_path: Path
) -> None:
    """What cannot be deleted is left for later, and holds up nothing else."""
    url, away = f"file://{tmp_path}/objects", f"file://{tmp_path}/away"
    objects, gone, kept = store.objects_at(url), uuid4(), await start(store)
    for owner in (gone, kept):
        await store.own_payloads(url, [owner], [None])
        for name in "ab":
            await objects.put(f"payloads/{owner}/{name}", b"1")
    await store.own_payloads(away, [gone], [None])
    (tmp_path / "away").mkdir()
    (tmp_path / "away" / "payloads").write_text("no folder")
    await clock.advance(DAY)
    deleted = await delete_unneeded(store)
    names = [name async for name in objects.names("payloads/")]
    assert names == [f"payloads/{kept}/a", f"payloads/{kept}/b"]
    assert deleted in (1, 2)
    assert await delete_unneeded(store) == 0
    await clock.advance(DAY)
    (tmp_path / "away" / "payloads").unlink()
    assert await delete_unneeded(store) == 2 - deleted


async def test_a_place_that_does_not_answer_is_not_asked_for_each_owner(
    store: Store,
    clock: Clock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It costs a pass its patience once, and one line in the log."""
    silent, asked = Silent(), f"file://{tmp_path}/objects"
    reached = store.objects_at

    def objects_at(url: str) -> Objects:
        return cast("Objects", silent) if url == URL else reached(url)

    monkeypatch.setattr(store, "objects_at", objects_at)
    monkeypatch.setattr(unneeded, "_OWNER_SECONDS", 0.05)
    monkeypatch.setattr(unneeded, "LOST_SECONDS", 0.04)
    owners = [uuid4() for _ in range(230)]
    await store.own_payloads(URL, owners, [None] * len(owners))
    await store.own_payloads(asked, owners[:3], [None] * 3)
    await clock.advance(DAY)
    assert await delete_unneeded(store) == 3
    assert silent.count == 16
    [line] = [each for each in caplog.messages if "left for later" in each]
    assert line.endswith(
        f" in {URL}, and perhaps those of others, are left for later: no answer in time"
    )


async def test_a_run_with_many_objects_keeps_no_other_from_losing_its_own(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes several passes, although each object goes in time."""
    slow = Slow()
    monkeypatch.setattr(store, "objects_at", lambda _: cast("Objects", slow))
    monkeypatch.setattr(unneeded, "_AT_ONCE", 1)
    monkeypatch.setattr(unneeded, "_OWNER_SECONDS", 0.3)
    monkeypatch.setattr(unneeded, "LOST_SECONDS", 0.3)
    owners = [uuid4() for _ in range(3)]
    await store.own_payloads(URL, owners, [None] * 3)
    await clock.advance(DAY)
    assert await delete_unneeded(store) == 0
    assert slow.asked == {f"payloads/{owner}/" for owner in owners}


class Slow:
    """Objects of a store that answers, but has many of each owner."""

    def __init__(self) -> None:
        self.asked: set[str] = set()

    async def names(self, prefix: str) -> AsyncGenerator[str]:
        """Give names for ever."""
        self.asked.add(prefix)
        while True:
            yield prefix

    async def delete(self, name: str) -> None:
        """Take a moment."""
        await asyncio.sleep(0.01)


class Silent:
    """Objects of a store that does not answer."""

    def __init__(self) -> None:
        self.count = 0

    async def names(self, prefix: str) -> AsyncGenerator[str]:
        """Wait for ever."""
        self.count += 1
        await asyncio.Event().wait()
        yield prefix


async def test_the_next_run_keeps_what_was_sent_to_the_first(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """A fork of the next run needs the payload, too."""
    first, second, fork_id = await start(store, retention_seconds=0), uuid4(), uuid4()
    await go_on(ann, await ann.take(), second)
    await own(store, first)
    assert (await signal(store, second, payload=object_of(first)))[0] == "delivered"
    fork = Fork(run_id=second, new_run_id=fork_id)
    assert (await store.fork_run(fork))[0] == "forked"
    await clock.advance(2 * DAY)
    for task in (await ann.claim()).tasks:
        if task.run_id == second:
            await ann.finish(task)
    assert (await store.sweep_runs()).deleted == 2
    assert await due(store) == set()
    assert object_of(first) in ((await log(store, fork_id))[1].details or "")


async def test_a_put_that_fails_is_known_until_it_succeeds(store: Store, clock: Clock) -> None:
    """A note is two minutes old at most: the worker tries again all the time."""
    owner = uuid4()
    await store.note_put(URL, owner, "an owner that is not known")
    assert await store.failing_puts(owner) == []
    await own(store, owner)
    await store.note_put(URL, owner, "connection refused")
    [failing] = await store.failing_puts(owner)
    assert (failing.url, failing.error) == (URL, "connection refused")
    assert await store.failing_puts(uuid4()) == []
    await store.note_put(URL, owner, None)
    assert await store.failing_puts(owner) == []
    await store.note_put(URL, owner, "connection refused")
    await clock.advance(150)
    assert await store.failing_puts(owner) == []
    with pytest.raises(InvalidInput):
        await store.note_put(URL, owner, "x" * 70_000)
