"""Reading: runs, listings, logs, tasks that nobody serves."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from clocks import Clock, recent_events

from holdfast.store.port import Store
from holdfast.types import CountBy, RunFilter, State
from holdfast.values.ids import keyed_run_id
from holdfast.values.moments import to_datetime

from .actors import SECOND, ManualWorker, log, new_run, start, step


async def listed(store: Store, **where: object) -> list[UUID]:
    """Return the ids of the runs listed."""
    page = await store.list_runs(RunFilter(**where))  # type: ignore[arg-type]
    return [run.run_id for run in page.runs]


async def test_runs_that_do_not_exist_are_not_returned(store: Store) -> None:
    run_id, missing = await start(store), uuid4()
    assert list(await store.get_runs([run_id, missing])) == [run_id]
    assert await store.get_runs([]) == {}


async def test_runs_are_counted_by_status_up_to_a_limit(store: Store, ann: ManualWorker) -> None:
    """B9: of some workflows, and of all together."""
    names = ["shop/a"] * 3 + ["shop/b"]
    started = [await start(store, name=name) for name in names]
    await store.terminate_runs([started[0], started[3]])
    assert await store.count_runs(["shop/a", "shop/b", "shop/none"], 10) == {
        "shop/a": {"running": 2, "terminated": 1},
        "shop/b": {"terminated": 1},
    }
    assert await store.count_runs(None, 10) == {"": {"running": 2, "terminated": 2}}
    assert await store.count_runs(["shop/a"], 1) == {"shop/a": {"running": 1, "terminated": 1}}
    assert await store.count_runs([], 10) == {}


async def test_runs_are_counted_by_what_they_have(store: Store, ann: ManualWorker) -> None:
    """B9. With the filters of a list, most first; a run counts for each of its tags."""
    tagged = [new_run(name="shop/a", tags=("vip", "eu")), new_run(name="shop/a", tags=("eu",))]
    others = [new_run(name="shop/b", queue="mail"), new_run(name="shop/a")]
    await store.start_runs(tagged + others)
    await store.terminate_runs([others[1].run_id])

    async def counted(by: CountBy, **where: object) -> list[tuple[str, int]]:
        found = await store.count_runs_by(by, RunFilter(**where))  # type: ignore[arg-type]
        assert (found.by, found.searched_until) == (by, None)
        return list(found.counts.items())

    assert await counted("workflow") == [("shop/a", 3), ("shop/b", 1)]
    assert await counted("state") == [("queued", 3), ("terminated", 1)]
    assert await counted("queue") == [("default", 3), ("mail", 1)]
    assert await counted("tag") == [("eu", 2), ("vip", 1)]
    assert await counted("queue", states=("terminated",)) == [("default", 1)]
    assert await counted("state", names=("shop/a",), tags=("eu",)) == [("queued", 2)]
    assert await counted("tag", queues=("mail",)) == []


async def test_a_count_ends_at_a_limit_and_says_so(store: Store, clock: Clock) -> None:
    for name in ("shop/a", "shop/b", "shop/b"):
        last = await start(store, name=name)
        await clock.advance(1)
    second = (await store.list_runs(RunFilter())).runs[1]
    assert second.run_id != last
    found = await store.count_runs_by("workflow", RunFilter(limit=2))
    assert found.counts == {"shop/b": 2}
    assert found.searched_until == to_datetime(second.created_at)
    assert (await store.count_runs_by("tag", RunFilter(limit=2))).searched_until is not None
    assert (await store.count_runs_by("tag", RunFilter(limit=3))).searched_until is None


async def test_logs_are_read_from_an_index_on(store: Store, ann: ManualWorker) -> None:
    """S2. Many at once; an unknown run has an empty list."""
    first, second, missing = await start(store, input="1"), await start(store), uuid4()
    for task in (await ann.claim()).tasks:
        await ann.commit(task, step("a"), step("b"))
    logs = await store.read_events([(first, 0), (second, 2), (missing, 0)])
    assert [event.key for event in logs[first]] == [None, "a", "b"]
    assert logs[first][0].details == "1"
    assert [event.key for event in logs[second]] == ["b"]
    assert logs[missing] == []
    assert await log(store, first, 3) == []


async def test_pages_of_logs_are_cut(store: Store, ann: ManualWorker) -> None:
    """Details have as many characters as were asked for, and say how many bytes there are."""
    run_id = await start(store, input='"' + "é" * 50 + '"')
    for task in (await ann.claim()).tasks:
        await ann.commit(task, step("a"), step("b"), step("c"))
    page = await store.read_log(run_id, 0, limit=3, clip=10)
    assert [(each.idx, each.event.key) for each in page] == [(0, None), (1, "a"), (2, "b")]
    assert (page[0].event.details, page[0].size) == ('"' + "é" * 9, 102)
    whole = await log(store, run_id)
    assert [each.event for each in await store.read_log(run_id, 0, limit=9, clip=1000)] == whole
    assert [each.idx for each in await store.read_log(run_id, 3, limit=9, clip=0)] == [3]
    assert await store.read_log(run_id, 4, limit=9, clip=9) == []
    assert await store.read_log(run_id, 0, limit=0, clip=9) == []
    assert await store.read_log(uuid4(), 0, limit=9, clip=9) == []


async def test_the_next_events_of_several_logs_are_bounded_and_shared(
    store: Store, ann: ManualWorker
) -> None:
    """Each range has its next event before another has its second; bytes count as they are cut."""
    long, short, missing = (
        await start(store, input='"' + "é" * 50 + '"'),
        await start(store),
        uuid4(),
    )
    for task in (await ann.claim()).tasks:
        await ann.commit(task, step("a"), step("b"), step("c"))
    ranges = [(long, 0), (missing, 0), (short, 3), (long, 2)]

    async def read(limit: int, clip: int, most_bytes: int) -> list[list[int]]:
        tails = await store.read_tails(ranges, limit=limit, clip=clip, most_bytes=most_bytes)
        return [[each.idx for each in tail] for tail in tails]

    assert await read(99, 1000, 10_000) == [[0, 1, 2, 3], [], [3], [2, 3]]
    assert await read(3, 1000, 10_000) == [[0], [], [3], [2]]
    assert await read(4, 1000, 10_000) == [[0, 1], [], [3], [2]]
    assert await read(99, 1000, 102) == await read(99, 10, 10) == [[0], [], [], []]
    assert await read(99, 1000, 103) == [[0], [], [3], []]
    assert await read(99, 1, 5) == [[0], [], [], []]  # it ends by what is read, too
    assert await read(0, 10, 10) == await read(9, 10, 0) == [[]] * 4
    [tail] = await store.read_tails([(long, 0)], limit=1, clip=10, most_bytes=1)
    assert (tail[0].event.details, tail[0].size) == ('"' + "é" * 9, 102)
    [tail] = await store.read_tails([(long, 0)], limit=9, clip=1000, most_bytes=10_000)
    assert [each.event for each in tail] == await log(store, long)
    assert await store.read_tails([], limit=9, clip=9, most_bytes=9) == []


async def test_listings_are_newest_first(store: Store, clock: Clock) -> None:
    """S1."""
    runs = []
    for _ in range(5):
        runs.append(await start(store))
        await clock.advance(1)
    assert await listed(store) == runs[::-1]
    assert await listed(store, limit=2) == runs[:2:-1]


async def test_a_cursor_is_stable_while_runs_come_and_go(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """S1. Each of the runs there were is seen once, those of one moment, too."""
    await store.start_runs([new_run() for _ in range(7)])
    await clock.advance(1)
    await store.start_runs([new_run() for _ in range(6)])
    expected = await listed(store)
    page = await store.list_runs(RunFilter(limit=4))
    seen = [run.run_id for run in page.runs]
    while page.cursor is not None:
        await clock.advance(1)
        await start(store)
        for task in (await ann.claim(limit=2)).tasks:
            await ann.finish(task)
        page = await store.list_runs(RunFilter(limit=4, cursor=page.cursor))
        seen += [run.run_id for run in page.runs]
    assert seen == expected


async def test_a_page_that_is_the_last_has_no_cursor(store: Store) -> None:
    await store.start_runs([new_run() for _ in range(4)])
    assert (await store.list_runs(RunFilter(limit=4))).cursor is None
    assert (await store.list_runs(RunFilter(limit=3))).cursor is not None
    assert (await store.list_runs(RunFilter(names=("refund",)))).cursor is None


async def test_listings_by_state(store: Store, ann: ManualWorker) -> None:
    """S1. The states of a running run are derived from its next turn."""
    done, asleep, broken, held = [await start(store) for _ in range(4)]
    tasks = {task.run_id: task for task in (await ann.claim()).tasks}
    await ann.finish(tasks[done])
    await ann.suspend(tasks[asleep])
    await ann.release(tasks[broken], visible_at=await store.now() + SECOND, stuck="why")
    gone = await start(store)
    await store.cancel_runs([gone])
    fresh = await start(store)
    expected: dict[State, UUID] = {
        "completed": done,
        "waiting": asleep,
        "stuck": broken,
        "running": held,
        "cancelled": gone,
        "queued": fresh,
    }
    for state, run_id in expected.items():
        assert await listed(store, states=(state,)) == [run_id]
    assert set(await listed(store, states=("completed", "queued"))) == {done, fresh}
    assert await listed(store, states=("timed_out",)) == []


async def test_listings_by_what_was_asked_for(store: Store, clock: Clock) -> None:
    """S1. Every condition given must hold."""
    began_at = await store.now()
    red = await start(
        store, run_id=keyed_run_id("refund", "r-1"), name="refund", tags=("eu", "vip"), key="r-1"
    )
    await clock.advance(1)
    blue = await start(
        store, run_id=keyed_run_id("order", "b-1"), queue="slow", tags=("eu",), key="b-1"
    )
    assert await listed(store, names=("refund",)) == [red]
    assert await listed(store, names=("refund", "order")) == [blue, red]
    assert await listed(store, queues=("slow",)) == [blue]
    assert await listed(store, tags=("eu",)) == [blue, red]
    assert await listed(store, tags=("eu", "vip")) == [red]
    assert await listed(store, key="b-1") == [blue]
    assert await listed(store, since=began_at + SECOND) == [blue]
    assert await listed(store, until=began_at + SECOND) == [red]
    assert await listed(store, names=("refund",), queues=("slow",)) == []


CONTAINED = [
    ('{"a": {"b": 1, "c": [1, 2]}, "d": null}', '{"a": {"c": [2]}}', True),
    ('{"a": 1}', '{"a": 1.0}', True),
    ('{"a": 1}', "{}", True),
    ('{"a": 1}', '{"b": null}', False),
    ('{"a": null}', '{"a": null}', True),
    ('{"a": 1}', '{"a": true}', False),
    ('{"a": [1]}', '{"a": 1}', False),
    ('{"a": [[1, 2]]}', '{"a": [1]}', False),
    ('{"a": [[1, 2], 3]}', '{"a": [[2]]}', True),
    ("[1, 2, 2]", "[2, 2, 2]", True),
    ("[1, 2]", "2", True),
    ("[[1], 2]", "1", False),
    ("[]", "{}", False),
    ('"x"', '"x"', True),
    ('"x"', '["x"]', False),
    ("[true]", "[1]", False),
    ('[{"a": 1, "b": 2}]', '[{"b": 2}]', True),
]


@pytest.mark.parametrize(("document", "pattern", "contained"), CONTAINED)
async def test_listings_by_containment_of_the_input(
    store: Store, document: str, pattern: str, contained: bool
) -> None:
    """Containment is PostgreSQL's, scalars, nulls and absent keys included."""
    run_id = await start(store, input=document)
    assert await listed(store, input_contains=pattern) == ([run_id] if contained else [])


async def test_what_happened_lately_in_all_runs(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """S2. Oldest first, by the moments of the facts."""
    await start(store)
    await clock.advance(30)
    since = await store.now()
    first, second = await start(store, input="1"), await start(store)
    await clock.advance(1)
    tasks = {task.run_id: task for task in (await ann.claim()).tasks}
    await ann.commit(tasks[second], step("late", at=since + 5 * SECOND))
    await ann.commit(tasks[first], step("early", at=since + 4 * SECOND))
    events = await recent_events(store, since=since)
    assert {(entry.run_id, entry.idx) for entry in events[:2]} == {(first, 0), (second, 0)}
    assert [(e.run_id, e.idx, e.event.key) for e in events[2:]] == [
        (first, 1, "early"),
        (second, 1, "late"),
    ]
    assert await recent_events(store, since=since, limit=3) == events[:3]
    assert await recent_events(store, since=since + 60 * SECOND) == []
    clipped = await store.recent_log(since=since, limit=9, clip=9_999)
    assert [(run_id, e.idx, e.event) for run_id, e in clipped] == [
        (e.run_id, e.idx, e.event) for e in events
    ]
    short = await store.recent_log(since=since, limit=4, clip=3)
    assert [run_id for run_id, _ in short] == [e.run_id for e in events]
    for (_, cut), (_, whole) in zip(short, clipped, strict=True):
        text = whole.event.details
        assert cut.event.details == (None if text is None else text[:3])
        assert cut.size == whole.size == len((text or "").encode())


async def test_what_no_worker_serves_is_counted(
    store: Store, ann: ManualWorker, bob: ManualWorker
) -> None:
    """B7, trap 25. One worker must have the queue and the handler both."""
    await store.start_runs([new_run(queue="gpu") for _ in range(3)])
    await store.start_runs([new_run(), new_run(name="refund", version=2)])
    everything = [("default", "order@1", 1), ("default", "refund@2", 1), ("gpu", "order@1", 3)]
    assert sorted(await store.unserved()) == everything
    await ann.beat(queues=("gpu",), handlers=("refund@2", "order@2"))
    assert sorted(await store.unserved()) == everything
    await bob.beat(queues=("default", "gpu"), handlers=("order@1",))
    assert await store.unserved() == [("default", "refund@2", 1)]
    await store.remove_worker("bob")
    assert sorted(await store.unserved()) == everything
