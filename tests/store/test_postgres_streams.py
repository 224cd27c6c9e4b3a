"""Streams: writes that meet a take-over, an end or one another inside the database."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import UUID

from contract.actors import ManualWorker, start
from scene import Scene, finished

from holdfast.types import LOG_STREAM, ClaimedTask, Event, LogChunk, NewChunk, StreamRead, Writer


def arguments(worker: str, task: ClaimedTask, *values: object, key: str = "say") -> list[Any]:
    """Return the arguments of write_streams for one chunk."""
    text = json.dumps(values)
    one = [[task.run_id], [""], [key], [task.lease_no], [1], ["tokens"], [len(values)], [False]]
    return [worker, *one, [text], [True], None, None]


def chunk(task: ClaimedTask, *values: object, key: str = "say", name: str = "tokens") -> NewChunk:
    return NewChunk(
        run_id=task.run_id,
        name=name,
        task="",
        writer=Writer(key, task.lease_no, 1),
        count=len(values),
        items=json.dumps(values),
        begins=True,
    )


async def read(scene: Scene, run_id: UUID, name: str = "tokens") -> list[tuple[str, int, str]]:
    """Return all chunks: values, offset and state."""
    [part] = await scene.store.read_streams(
        [StreamRead(run_id, name, 0)], limit=1000, most_bytes=10**9
    )
    return [(each.items, each.last_offset, each.state) for each in part.chunks]


async def take_over(scene: Scene, bob: ManualWorker, run_id: UUID) -> ClaimedTask:
    """Let the lease of a run end, and let bob claim it."""
    await scene.value(
        "update holdfast.tasks set visible_at = holdfast.now() - interval '1 s' where run_id = $1",
        run_id,
    )
    await bob.beat()
    return await bob.take()


async def test_a_write_under_way_during_a_take_over_is_never_read_once_the_next_attempt_writes(
    scene: Scene, ann: ManualWorker, bob: ManualWorker
) -> None:
    """The lease was checked before the take-over, and the write is committed after it."""
    run_id = await start(scene.store)
    task = await ann.take()
    zombie = await scene.session()
    async with zombie.transaction():
        [row] = await zombie.call("write_streams", *arguments("ann", task, "late"))
        assert row["offsets"] == [1]
        taken = await take_over(scene, bob, run_id)
        assert await read(scene, run_id) == []
        writing = asyncio.create_task(scene.store.write_streams("bob", [chunk(taken, "new")]))
        await scene.until_blocked()
    assert list((await writing).offsets) == [2]
    assert [each for each in await read(scene, run_id) if each[2] != "dead"] == [
        ('["new"]', 2, "open")
    ]


async def test_a_write_that_waits_for_the_stream_during_a_take_over_is_refused(
    scene: Scene, ann: ManualWorker, bob: ManualWorker
) -> None:
    """The lease is checked once it has the stream, so the next attempt may write before it."""
    run_id = await start(scene.store)
    task = await ann.take()
    await scene.store.write_streams("ann", [chunk(task, "early")])
    holder = await scene.session()
    async with holder.transaction():
        await holder.connection.execute("select from holdfast.streams for update")
        late = asyncio.create_task(scene.store.write_streams("ann", [chunk(task, "late")]))
        await scene.until_blocked()
        taken = await take_over(scene, bob, run_id)
        writing = asyncio.create_task(scene.store.write_streams("bob", [chunk(taken, "new")]))
        await scene.until_blocked(2)
    assert (list((await late).offsets), list((await writing).offsets)) == ([None], [2])
    found = {items: state for items, _, state in await read(scene, run_id)}
    assert found == {'["early"]': "dead", '["new"]': "open"}


async def test_such_a_write_is_never_read_once_the_next_attempt_ended_without_writing(
    scene: Scene, ann: ManualWorker, bob: ManualWorker
) -> None:
    run_id = await start(scene.store)
    task = await ann.take()
    zombie = await scene.session()
    async with zombie.transaction():
        await zombie.call("write_streams", *arguments("ann", task, "late"))
        taken = await take_over(scene, bob, run_id)
        told = json.dumps({"name": "say", "args": 1, "result": None, "started_at": 0})
        await bob.commit(taken, Event("StepCompleted", "say", told, 0))
    assert await read(scene, run_id) == [('["late"]', 1, "dead")]


async def test_a_write_after_a_take_over_is_refused(
    scene: Scene, ann: ManualWorker, bob: ManualWorker
) -> None:
    run_id = await start(scene.store)
    task = await ann.take()
    await take_over(scene, bob, run_id)
    assert list((await scene.store.write_streams("ann", [chunk(task, "late")])).offsets) == [None]
    assert await read(scene, run_id) == []


async def test_a_repeated_call_waits_for_the_first_try_that_is_still_under_way(
    scene: Scene, ann: ManualWorker
) -> None:
    """The connection was lost, but the server carries the call out."""
    run_id = await start(scene.store)
    task = await ann.take()
    lost = await scene.session()
    async with lost.transaction():
        await lost.call("write_streams", *arguments("ann", task, "a"))
        again = asyncio.create_task(
            scene.store.write_streams("ann", [chunk(task, "a")], again=True)
        )
        await scene.until_blocked()
    assert list((await again).offsets) == [1]
    assert await read(scene, run_id) == [('["a"]', 1, "open")]


async def test_writers_of_one_stream_wait_for_each_other_and_others_do_not(
    scene: Scene, ann: ManualWorker
) -> None:
    run_id, other_id = await start(scene.store), await start(scene.store)
    tasks = {task.run_id: task for task in (await ann.claim(limit=2)).tasks}
    task, other = tasks[run_id], tasks[other_id]
    await scene.store.write_streams("ann", [chunk(task, 0), chunk(other, 0)])
    first = await scene.session()
    async with first.transaction():
        await first.call("write_streams", *arguments("ann", task, "a", "b"))
        free = await scene.store.write_streams("ann", [chunk(other, 1), chunk(task, 1, name="x")])
        assert list(free.offsets) == [2, 1]
        second = asyncio.create_task(
            scene.store.write_streams("ann", [chunk(task, "c", key="shout")])
        )
        await scene.until_blocked()
    assert list((await second).offsets) == [4]
    assert [each[1] for each in await read(scene, run_id)] == [1, 3, 4]


async def test_many_writers_never_deadlock_and_leave_no_gap(
    scene: Scene, ann: ManualWorker
) -> None:
    """Each call writes to many streams, in another order."""
    ids = [await start(scene.store) for _ in range(4)]
    tasks = (await ann.claim(limit=4)).tasks

    async def write(number: int) -> None:
        for step in range(5):
            turned = tasks[number % 4 :] + tasks[: number % 4]
            chunks = [chunk(task, number, step, key=f"say#{number}") for task in turned]
            offsets = (await scene.store.write_streams("ann", chunks)).offsets
            assert None not in offsets

    await asyncio.gather(*(write(number) for number in range(12)))
    for run_id in ids:
        found = await read(scene, run_id)
        assert [offset for _, offset, _ in found] == [*range(2, 122, 2)]


async def test_what_code_writes_in_a_commit_meets_a_write_of_a_step(
    scene: Scene, ann: ManualWorker
) -> None:
    """The commit waits for the stream, not longer than for any lock, and is repeated then."""
    run_id = await start(scene.store)
    task = await ann.take()
    await scene.store.write_streams("ann", [chunk(task, 0)])
    writer = await scene.session()
    told = json.dumps({"stream": "tokens", "items": ["code"], "closes": False})
    written = Event("StreamWritten", "stream:tokens", told, 0)
    async with writer.transaction():
        await writer.call("write_streams", *arguments("ann", task, 1))
        assert (await ann.refusal(task, written)).reason == "busy"
    await ann.command(task, written)
    assert [items for items, _, _ in await read(scene, run_id)] == ["[0]", "[1]", '["code"]']


async def test_a_run_that_has_ended_takes_nothing(scene: Scene, ann: ManualWorker) -> None:
    run_id = await start(scene.store)
    task = await ann.take()
    session = await scene.session()
    await session.commit("ann", finished(task))
    assert list((await scene.store.write_streams("ann", [chunk(task, 1)])).offsets) == [None]
    assert await read(scene, run_id) == []


async def test_a_large_run_is_deleted_in_parts(scene: Scene, ann: ManualWorker) -> None:
    run_id = await start(scene.store, retention_seconds=0)
    task = await ann.take()
    for number in range(30):
        await scene.store.write_streams("ann", [chunk(task, number)])
    await ann.finish(task)
    passes = 0
    while (swept := await scene.store.sweep_runs(rows=10)).deleted == 0:
        passes += 1
        assert passes < 10, swept
    assert passes >= 2
    for table in ("streams", "stream_chunks", "stream_writers"):
        assert await scene.value(f"select count(*) from holdfast.{table}") == 0
    assert await read(scene, run_id) == []


def log_arguments(*run_ids: UUID) -> list[Any]:
    """Return the arguments of write_logs for a line of each run."""
    count = len(run_ids)
    numbers, ones = list(range(count)), [1] * count
    return [LOG_STREAM, 7, list(run_ids), numbers, ones, ["[1]"] * count, 1000]


async def test_a_line_for_a_run_that_is_being_deleted_is_not_written(
    scene: Scene, ann: ManualWorker
) -> None:
    """And one that comes first is deleted with it: no row is left behind."""
    run_id = await start(scene.store, retention_seconds=0)
    await ann.finish(await ann.take())
    sweeper, chunks = await scene.session(), [LogChunk(run_id, 1, 1, "[1]")]
    async with sweeper.transaction():
        [row] = await sweeper.call("sweep_runs")
        assert row["deleted"] == 1
        late = asyncio.create_task(scene.store.write_logs(7, chunks, most_bytes=1000))
        await scene.until_blocked()
    await late
    other_id = await start(scene.store, retention_seconds=0)
    await ann.finish(await ann.take())
    writer = await scene.session()
    async with writer.transaction():
        await writer.call("write_logs", *log_arguments(other_id))
        deleting = asyncio.create_task(sweeper.call("_delete_runs", [other_id]))
        await scene.until_blocked()
    assert [row[0] for row in await deleting] == [1]
    for table in ("streams", "stream_chunks"):
        assert await scene.value(f"select count(*) from holdfast.{table}") == 0


async def test_lines_of_a_call_that_is_still_under_way_are_not_written_twice(scene: Scene) -> None:
    """The connection was lost, but the server carries the call out."""
    run_id = await start(scene.store)
    lost = await scene.session()
    async with lost.transaction():
        await lost.call("write_logs", *log_arguments(run_id))
        chunks = [LogChunk(run_id, 0, 1, "[1]")]
        again = asyncio.create_task(scene.store.write_logs(7, chunks, most_bytes=1000, again=True))
        await scene.until_blocked()
    await again
    assert await read(scene, run_id, LOG_STREAM) == [("[1]", 1, "final")]


async def test_writers_of_many_logs_never_deadlock(scene: Scene) -> None:
    """Each call has the runs in another order."""
    ids = [await start(scene.store) for _ in range(4)]

    async def write(number: int) -> None:
        turned = ids[number % 4 :] + ids[: number % 4]
        chunks = [LogChunk(run_id, number, 1, f"[{number}]") for run_id in turned]
        await scene.store.write_logs(number, chunks, most_bytes=10**6)

    await asyncio.gather(*(write(number) for number in range(12)))
    for run_id in ids:
        found = await read(scene, run_id, LOG_STREAM)
        assert [offset for _, offset, _ in found] == [*range(1, 13)]
