"""A write to a stream meets the run that continues the stream: no offset is given twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias
from uuid import UUID, uuid4

import pytest
from contract.actors import ManualWorker, start
from scene import Scene, Session
from test_postgres_continuing import continuing
from test_postgres_streams import arguments, chunk, read

from holdfast.types import ClaimedTask, Fork, StreamRead

Follow: TypeAlias = Callable[[Scene, ClaimedTask, UUID], Awaitable[object]]


async def continue_as_new(scene: Scene, task: ClaimedTask, new_id: UUID) -> None:
    """Commit the end of a run, and with it the next run."""
    await (await scene.session()).commit("ann", continuing(task, new_id))


async def retry(scene: Scene, task: ClaimedTask, new_id: UUID) -> None:
    """End a run, and start a retry of it afterwards."""
    await scene.store.terminate_runs([task.run_id], reason=None)
    outcome, _ = await scene.store.fork_run(Fork(run_id=task.run_id, new_run_id=new_id, retry=True))
    assert outcome == "forked"


@asynccontextmanager
async def held(session: Session) -> AsyncIterator[None]:
    """Keep the rows of all streams from others for the length of the block."""
    async with session.transaction():
        await session.connection.execute("select from holdfast.streams for update")
        yield


async def base(scene: Scene, run_id: UUID) -> int:
    """Return the last offset that a run's stream has of the runs before it."""
    [part] = await scene.store.read_streams([StreamRead(run_id, "tokens")], limit=9, most_bytes=9)
    return part.base


@pytest.mark.parametrize("follow", [continue_as_new, retry])
@pytest.mark.parametrize("before", [(), ("early",)])
async def test_the_run_that_follows_waits_for_a_write_under_way(
    scene: Scene, ann: ManualWorker, follow: Follow, before: tuple[str, ...]
) -> None:
    """The write may even make the stream, which the other transaction cannot see yet."""
    run_id, new_id = await start(scene.store), uuid4()
    task = await ann.take()
    if before:
        await scene.store.write_streams("ann", [chunk(task, *before)])
    writer = await scene.session()
    async with writer.transaction():
        await writer.call("write_streams", *arguments("ann", task, "a", "b"))
        following = asyncio.create_task(follow(scene, task, new_id))
        await scene.until_blocked_or(following)
    await following
    last = [offset for _, offset, _ in await read(scene, run_id)][-1]
    assert (last, await base(scene, new_id)) == (len(before) + 2, len(before) + 2)
    assert list((await scene.store.write_streams("ann", [chunk(task, "c")])).offsets) == [None]


@pytest.mark.parametrize("follow", [continue_as_new, retry])
async def test_a_write_that_waits_for_its_stream_meanwhile_is_refused(
    scene: Scene, ann: ManualWorker, follow: Follow
) -> None:
    run_id, new_id = await start(scene.store), uuid4()
    task = await ann.take()
    await scene.store.write_streams("ann", [chunk(task, "early")])
    async with held(await scene.session()):
        late = asyncio.create_task(scene.store.write_streams("ann", [chunk(task, "late")]))
        await scene.until_blocked()
        await follow(scene, task, new_id)
    assert list((await late).offsets) == [None]
    assert [items for items, _, _ in await read(scene, run_id)] == ['["early"]']
    assert await base(scene, new_id) == 1


@pytest.mark.parametrize("commits", [True, False])
async def test_a_write_waits_for_the_run_that_follows(
    scene: Scene, ann: ManualWorker, commits: bool
) -> None:
    """If that is not committed, the write is as good as any."""
    run_id, new_id = await start(scene.store), uuid4()
    task = await ann.take()
    committer = await scene.session()
    transaction = committer.transaction()
    await transaction.start()
    await committer.commit("ann", continuing(task, new_id))
    late = scene.store.write_streams("ann", [chunk(task, "late")])
    written = await scene.while_blocked(
        late, transaction.commit if commits else transaction.rollback
    )
    assert list(written.offsets) == [None if commits else 1]
    assert len(await read(scene, run_id)) == (0 if commits else 1)


async def test_writes_and_runs_that_follow_never_deadlock(scene: Scene, ann: ManualWorker) -> None:
    """Each call names the runs in another order."""
    for _ in range(6):
        await start(scene.store)
    tasks, news = (await ann.claim(limit=6)).tasks, [uuid4() for _ in range(6)]

    async def write(number: int) -> None:
        turned = tasks[number:] + tasks[:number]
        chunks = [chunk(task, number, name=f"s{number % 2}", key=f"k{number}") for task in turned]
        await scene.store.write_streams("ann", chunks)

    async def follow(number: int) -> None:
        turns = [continuing(task, new) for task, new in zip(tasks, news, strict=True)]
        await (await scene.session()).commit("ann", *turns[number::2])

    await asyncio.gather(*(write(number) for number in range(6)), follow(0), follow(1))
    for task, new in zip(tasks, news, strict=True):
        for name in ("s0", "s1"):
            reads = [StreamRead(task.run_id, name), StreamRead(new, name)]
            old, then = await scene.store.read_streams(reads, limit=99, most_bytes=9999)
            assert old.last_offset == then.base


async def test_a_write_to_very_many_runs_leaves_room_for_the_locks_of_others(scene: Scene) -> None:
    """The server keeps all locks of all sessions in a table of some thousands."""
    count, writer = 2000, await scene.session()
    ones, texts = [1] * count, [""] * count
    ids, names, items = [uuid4() for _ in range(count)], ["tokens"] * count, ["[1]"] * count
    given = ["ann", ids, texts, ["say"] * count, ones, ones, names, ones, [False] * count, items]
    async with writer.transaction():
        await writer.call("write_streams", *given, [True] * count, None, None)
        held = await scene.value("select count(*) from pg_locks where locktype = 'advisory'")
    assert 0 < held <= 512
