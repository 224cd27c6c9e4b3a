"""Streams: dense offsets, one writer's order, and which attempts count."""

from __future__ import annotations

import json
from uuid import UUID, uuid4

import msgspec
import pytest
from clocks import Clock

from holdfast.errors import PayloadError
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.types import (
    LOG_STREAM,
    MOST_STREAMS,
    ClaimedTask,
    Event,
    Finish,
    Fork,
    LogChunk,
    NewChunk,
    Notice,
    StreamPart,
    StreamRead,
    Writer,
)

from .actors import ManualWorker, lose, start
from .commands import RESIZE, activity, command, ordered


def chunk(task: ClaimedTask, *values: object, **fields: object) -> NewChunk:
    """Return a chunk of the step `say`, or of the activity that the task is."""
    key = task.key or str(fields.pop("key", "say"))
    made = NewChunk(
        run_id=task.run_id,
        name="tokens",
        task=task.key,
        writer=Writer(key, task.lease_no, int(str(fields.pop("attempt", 1)))),
        count=max(1, len(values)),
        items=json.dumps(values),
        begins=True,
    )
    return msgspec.structs.replace(made, **fields)


async def write(
    store: Store, *chunks: NewChunk, worker: str = "ann", again: bool = False
) -> list[int | None]:
    """Write chunks; return their offsets."""
    return list((await store.write_streams(worker, chunks, again=again)).offsets)


async def read(
    store: Store, run_id: UUID, after: int = 0, name: str = "tokens", **fields: object
) -> StreamPart:
    """Read a part of a stream."""
    asked = msgspec.structs.replace(StreamRead(run_id, name, after), **fields)
    [part] = await store.read_streams([asked], limit=100, most_bytes=1000)
    return part


async def counted(store: Store, run_id: UUID, after: int = 0) -> list[object]:
    """Return the values that a reader gets who comes now."""
    part = await read(store, run_id, after)
    return [v for c in part.chunks if c.state != "dead" for v in json.loads(c.items)]


def ended(key: str = "say", **fields: object) -> Event:
    """Return the record of a step."""
    details = {"name": key, "args": 1, "result": None, "started_at": 0, **fields}
    return Event("StepCompleted", key, json.dumps(details), 0)


async def test_offsets_are_dense_and_those_of_a_stream(store: Store, ann: ManualWorker) -> None:
    """Several chunks of one call, too, in the order given."""
    run_id = await start(store)
    task = await ann.take()
    first = chunk(task, "a", "b"), chunk(task, 1, name="other"), chunk(task, "c", key="shout")
    assert await write(store, *first) == [2, 1, 3]
    assert await write(store, chunk(task, "d", "e", begins=False)) == [5]
    part = await read(store, run_id)
    assert [(c.last_offset, c.count, c.items) for c in part.chunks] == [
        (2, 2, '["a", "b"]'),
        (3, 1, '["c"]'),
        (5, 2, '["d", "e"]'),
    ]
    assert (part.status, part.last_offset, part.base, part.log_length) == ("running", 5, 0, 1)
    assert {c.state for c in part.chunks} == {"open"}
    assert [c.last_offset for c in (await read(store, run_id, 3)).chunks] == [5]
    assert [c.last_offset for c in (await read(store, run_id, 4)).chunks] == [5]
    assert (await read(store, run_id, 5)).chunks == []


async def test_what_does_not_exist_is_told(store: Store) -> None:
    run_id = await start(store)
    assert await read(store, run_id) == StreamPart("running", 0, 0, 1, [], [])
    assert await read(store, uuid4()) == StreamPart(None, 0, 0, 0, [], [])


async def test_a_part_is_bounded(store: Store, ann: ManualWorker) -> None:
    """A chunk that is larger than the bound comes alone."""
    run_id = await start(store)
    task = await ann.take()
    for text in ("a" * 600, "b" * 600, "c" * 5000, "d"):
        await write(store, chunk(task, text))
    assert [c.last_offset for c in (await read(store, run_id)).chunks] == [1, 2]
    assert [c.last_offset for c in (await read(store, run_id, 2)).chunks] == [3]
    many = [StreamRead(run_id, "tokens", 0), StreamRead(run_id, "none", 0)]
    one, none = await store.read_streams(many, limit=1, most_bytes=10**6)
    assert ([c.last_offset for c in one.chunks], none.chunks) == ([1], [])


async def test_a_call_whose_answer_was_lost_writes_nothing_twice(
    store: Store, ann: ManualWorker
) -> None:
    run_id = await start(store)
    task = await ann.take()
    calls = chunk(task, "a"), chunk(task, "x", key="shout")
    assert await write(store, *calls) == [1, 2]
    assert await write(store, *calls, again=True) == [1, 2]
    later = chunk(task, "b", begins=False, after=1), chunk(task, "y", key="shout", after=2)
    assert await write(store, later[0]) == [3]
    assert await write(store, *later, again=True) == [3, 4]
    assert await counted(store, run_id) == ["a", "x", "b", "y"]


async def test_who_lost_the_lease_writes_nothing(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """Nor does who has never had it; a chunk of another run in the same call is written."""
    run_id = await start(store)
    task = await lose(clock, ann)
    await bob.beat()
    taken = await bob.take()
    other_id = await start(store, queue="slow")
    other = await ann.take(queues=["slow"])
    assert await write(store, chunk(task, "a"), chunk(other, "b")) == [None, 1]
    assert await write(store, chunk(taken, "c"), worker="eve") == [None]
    assert (await read(store, run_id)).last_offset == 0
    assert await counted(store, other_id) == ["b"]


async def test_what_was_written_before_a_take_over_counts_until_the_next_attempt_writes(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """Also if that writes to another stream of the run."""
    run_id = await start(store)
    task = await ann.take(lease_seconds=10)
    await write(store, chunk(task, "a"))
    await clock.advance(10)
    await bob.beat()
    taken = await bob.take()
    assert await counted(store, run_id) == ["a"]
    await write(store, chunk(taken, "x", name="other"), worker="bob")
    assert await counted(store, run_id) == []
    await write(store, chunk(taken, "b"), worker="bob")
    assert await counted(store, run_id) == ["b"]
    part = await read(store, run_id)
    assert [(c.state, c.by_attempt) for c in part.chunks] == [("dead", 1), ("open", None)]


async def test_the_record_of_a_step_says_which_attempt_counts(
    store: Store, clock: Clock, ann: ManualWorker, bob: ManualWorker
) -> None:
    """That of a killed worker does not, even if the attempt after it has written nothing."""
    ids = [await start(store) for _ in range(3)]
    tasks = (await ann.claim(limit=3, lease_seconds=10)).tasks
    for task in tasks:
        await write(store, chunk(task, "a"))
    await ann.commit(tasks[0], ended(streams=1))
    assert await counted(store, tasks[0].run_id) == ["a"]
    await clock.advance(10)
    await bob.beat()
    taken = {task.run_id: task for task in (await bob.claim(limit=3)).tasks}
    wrote_none, wrote = taken[tasks[1].run_id], taken[tasks[2].run_id]
    await bob.commit(wrote_none, ended())
    await write(store, chunk(wrote, "b"), worker="bob")
    await bob.commit(wrote, ended(streams=2))
    assert [await counted(store, task.run_id) for task in tasks] == [["a"], [], ["b"]]
    states = [(await read(store, task.run_id)).chunks for task in tasks]
    assert [[c.state for c in each] for each in states] == [["final"], ["dead"], ["dead", "final"]]
    assert len(ids) == 3


@pytest.mark.parametrize("type", ["StepCompleted", "StepFailed"])
async def test_a_failed_attempt_does_not_count_unless_it_was_the_last(
    store: Store, ann: ManualWorker, type: str
) -> None:
    run_id = await start(store)
    task = await ann.take()
    await write(store, chunk(task, "a"))
    await write(store, chunk(task, "b", attempt=2))
    assert await counted(store, run_id) == ["b"]
    text = ended(attempt=3, error={"kind": "E", "message": ""}).details
    await ann.commit(task, Event(type, "say", text, 0))
    assert await counted(store, run_id) == []
    other_id = await start(store, queue="slow")
    other = await ann.take(queues=["slow"])
    await write(store, chunk(other, "a"), chunk(other, "b", attempt=2))
    text = ended(attempt=2, streams=1, error={"kind": "E", "message": ""}).details
    await ann.commit(other, Event(type, "say", text, 0))
    assert await counted(store, other_id) == ["b"]


async def test_a_reader_hears_of_the_fate_of_those_who_wrote(
    store: Store, ann: ManualWorker
) -> None:
    """Of those it asks for; one that resumes is told who may not count, once."""
    run_id = await start(store)
    task = await ann.take()
    one, two = Writer("say", 1, 1), Writer("say", 1, 2)
    await write(store, chunk(task, "a"), chunk(task, "x", key="shout"))
    part = await read(store, run_id, 2, open=((one, 1),))
    assert [(f.writer, f.state) for f in part.fates] == [(one, "open")]
    await write(store, chunk(task, "b", attempt=2))
    part = await read(store, run_id, 3, open=((one, 1), (two, 1)))
    assert sorted((f.writer.attempt, f.state, f.by_attempt) for f in part.fates) == [
        (1, "dead", 2),
        (2, "open", None),
    ]
    part = await read(store, run_id, 2, resumed=True)  # it has not seen the second attempt
    fates = {(f.writer.key, f.state, f.by_attempt) for f in part.fates}
    assert fates == {("say", "dead", 2), ("shout", "open", None)}
    part = await read(store, run_id, 3, resumed=True)  # it has, and so heard of it
    assert {(f.writer.key, f.state) for f in part.fates} == {("say", "open"), ("shout", "open")}
    await ann.commit(task, ended(attempt=2, streams=1), ended("shout"))
    part = await read(store, run_id, 3, resumed=True)
    assert [(f.writer.key, f.state) for f in part.fates] == [("shout", "dead")]
    part = await read(store, run_id, 3, open=((two, 1),))
    assert [(f.writer, f.state) for f in part.fates] == [(two, "final")]


@pytest.mark.parametrize("writes_again", [False, True])
async def test_an_activity_counts_by_its_lease(
    store: Store, ann: ManualWorker, bob: ManualWorker, writes_again: bool
) -> None:
    """Also where the numbers of lease and attempt differ: it was given back."""
    run_id = await ordered(store, ann, activity())
    first = await ann.take(handlers=RESIZE)
    await write(store, chunk(first, "a", attempt=first.attempts))
    await ann.release(first)
    second = await bob.take(handlers=RESIZE)
    assert (second.lease_no, second.attempts) == (2, 1)
    if writes_again:
        await write(store, chunk(second, "b", attempt=1), worker="bob")
    await bob.end(second, result='"done"')
    assert await counted(store, run_id) == (["b"] if writes_again else [])
    states = [c.state for c in (await read(store, run_id)).chunks]
    assert states == (["dead", "final"] if writes_again else ["dead"])


async def test_a_run_has_at_most_so_many_streams(store: Store, ann: ManualWorker) -> None:
    """The database has the number of the rule, and its log does not count."""
    run_id = await start(store)
    task = await ann.take()
    await store.write_logs(7, [LogChunk(run_id, 1, 1, "[1]")], most_bytes=1000)
    names = [f"s{number:03}" for number in range(MOST_STREAMS + 1)]
    offsets = await write(store, *(chunk(task, 1, name=name) for name in names))
    assert sorted(offsets, key=str) == [-1, *[1] * MOST_STREAMS]
    refused = names[offsets.index(-1)]
    assert await write(store, chunk(task, 2, name=refused), chunk(task, 2, name="s000")) == [-1, 2]
    assert (await read(store, run_id, name=refused)).last_offset == 0


async def test_code_writes_with_its_commit(store: Store, ann: ManualWorker) -> None:
    """Also with the commit that ends the run."""
    run_id = await start(store)
    task = await ann.take()

    def written(key: str, *values: object, **fields: object) -> Event:
        return command("StreamWritten", key, stream="tokens", items=values, **fields)

    await ann.command(task, written("a", "a"), written("b", {"x": 1e300}))
    assert await counted(store, run_id) == ["a", {"x": 1e300}]
    last = Event("WorkflowCompleted", None, None, 0)
    events = written("c", "c"), written("d", closes=True), last
    answer = await ann.commit(task, *events, then=Finish("completed", output="1"), expected=3)
    assert not answer.refused
    part = await read(store, run_id, 2)
    assert [(c.items, c.closes, c.state, c.writer.key) for c in part.chunks] == [
        ('["c"]', False, "final", ""),
        ("[]", True, "final", ""),
    ]
    assert part.status == "completed"


async def test_a_run_continues_the_offsets_of_the_one_before(
    store: Store, ann: ManualWorker
) -> None:
    await start(store)
    task = await ann.take()
    await write(store, chunk(task, "a", "b"))
    new_id = uuid4()
    continued = command(
        "WorkflowContinuedAsNew", "", run_id=str(new_id), input=1, version=1, signals=[]
    )
    output = f'{{"run_id":"{new_id}"}}'
    await ann.commit(
        task, Event(continued.type, None, continued.details, 0), then=Finish("continued", output)
    )
    part = await read(store, new_id, 2)
    assert (part.base, part.last_offset, part.chunks) == (2, 2, [])
    taken = await ann.take()
    assert await write(store, chunk(taken, "c")) == [3]


async def test_a_retry_continues_the_offsets_and_a_fork_does_not(
    store: Store, ann: ManualWorker
) -> None:
    """The retry has what the code wrote, so that its code does not write it again."""
    run_id = await start(store)
    task = await ann.take()
    await write(store, chunk(task, "a", "b"))
    written = command("StreamWritten", "c", stream="tokens", items=["c"], closes=False)
    await ann.command(task, written)
    await store.terminate_runs([run_id], reason=None)
    found: list[tuple[object, ...]] = []
    for retry in (True, False):
        new_id = uuid4()
        outcome, _ = await store.fork_run(Fork(run_id=run_id, new_run_id=new_id, retry=retry))
        part = await read(store, new_id)
        log = (await store.read_events([(new_id, 0)]))[new_id]
        copied = [each.key for each in log if each.type == "StreamWritten"]
        found.append((outcome, part.base, part.last_offset, part.chunks, copied))
        turn = await ann.take()
        found.append((turn.run_id == new_id, await write(store, chunk(turn, "d"))))
    assert found == [
        ("forked", 3, 3, [], ["c"]),
        (True, [4]),
        ("forked", 0, 0, [], []),
        (True, [1]),
    ]


async def test_readers_are_woken_while_they_wait(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """And nobody is told of what nobody waits for."""
    run_id = await start(store)
    task = await ann.take()

    async def notices(*chunks: NewChunk) -> list[Notice]:
        return (await store.write_streams("ann", chunks)).notices

    told = [Notice(f"stream/{run_id}", "tokens")]
    assert await notices(chunk(task, 1)) == []
    await store.await_streams([(run_id, "tokens"), (uuid4(), "tokens")], 60)
    assert await notices(chunk(task, 1), chunk(task, 1), chunk(task, 1, name="other")) == told
    written = command("StreamWritten", "c", stream="tokens", items=[2], closes=False)
    assert (await ann.command(task, written)).notices == told
    await clock.advance(61)
    assert await notices(chunk(task, 1)) == []
    await store.await_streams([(run_id, "tokens")], 60)
    await store.await_streams([(run_id, "tokens")], 60)
    assert await notices(chunk(task, 1)) == told


async def test_streams_are_deleted_with_their_run(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    run_id = await start(store, retention_seconds=60)
    kept_id = await start(store, retention_seconds=6000)
    for task in (await ann.claim(limit=2)).tasks:
        await write(store, chunk(task, "a"))
        await store.await_streams([(task.run_id, "tokens")], 1000)
        await ann.finish(task)
    await clock.advance(61)
    await store.sweep_runs()
    assert await read(store, run_id) == StreamPart(None, 0, 0, 0, [], [])
    assert await counted(store, kept_id) == ["a"]


async def test_what_no_reader_can_read_is_refused(store: Store, ann: ManualWorker) -> None:
    await start(store)
    task = await ann.take()
    with pytest.raises(PayloadError):
        await store.write_streams(
            "ann", [msgspec.structs.replace(chunk(task, 1), items='["\\u0000"]')]
        )


async def log_of(store: Store, run_id: UUID, after: int = 0) -> list[tuple[int, str]]:
    """Return the chunks of a log: their offsets and items."""
    part = await read(store, run_id, after, LOG_STREAM)
    assert {each.state for each in part.chunks} <= {"final"}
    return [(each.last_offset, each.items) for each in part.chunks]


async def test_a_log_is_written_without_a_lease(store: Store, ann: ManualWorker) -> None:
    """Also after the end of the run; not for a run that does not exist."""
    run_id = await start(store)
    await store.await_streams([(run_id, LOG_STREAM)], 60)
    chunks = LogChunk(run_id, 1, 2, "[1,2]"), LogChunk(uuid4(), 2, 1, "[9]")
    written = await store.write_logs(7, chunks, most_bytes=1000)
    assert written.notices == [Notice(f"stream/{run_id}", LOG_STREAM)]
    await ann.finish(await ann.take())
    await store.write_logs(8, [LogChunk(run_id, 1, 1, "[3]")], most_bytes=1000)
    assert await log_of(store, run_id) == [(2, "[1,2]"), (3, "[3]")]
    assert await log_of(store, chunks[1].run_id) == []
    with pytest.raises(PayloadError):
        await store.write_logs(8, [LogChunk(run_id, 2, 1, '["\\u0000"]')], most_bytes=1000)


async def test_lines_whose_answer_was_lost_are_not_written_twice(store: Store) -> None:
    run_id, other_id = await start(store), await start(store)
    first, second = LogChunk(run_id, 1, 1, "[1]"), LogChunk(other_id, 2, 1, "[2]")
    await store.write_logs(7, [first], most_bytes=1000)
    await store.write_logs(8, [first], most_bytes=1000, again=True)  # of another worker
    await store.write_logs(7, [first, second], most_bytes=1000, again=True)
    assert [await log_of(store, each) for each in (run_id, other_id)] == [
        [(1, "[1]"), (2, "[1]")],
        [(1, "[2]")],
    ]


async def test_the_oldest_lines_make_room_for_new_ones(store: Store) -> None:
    """Down to three quarters; offsets stay, and the newest chunk, however large."""
    run_id = await start(store)
    for number in range(10):
        line = json.dumps(["x" * 96])
        await store.write_logs(7, [LogChunk(run_id, number, 1, line)], most_bytes=1000)
    assert [offset for offset, _ in await log_of(store, run_id)] == [*range(1, 11)]
    await store.write_logs(7, [LogChunk(run_id, 10, 1, json.dumps(["x" * 96]))], most_bytes=1000)
    assert [offset for offset, _ in await log_of(store, run_id)] == [*range(5, 12)]
    [info] = await store.list_streams(run_id)
    assert (info.last_offset, info.bytes) == (11, 700)
    large = json.dumps(["x" * 5000])
    await store.write_logs(7, [LogChunk(run_id, 11, 1, large)], most_bytes=1000)
    assert await log_of(store, run_id) == [(12, large)]


async def test_streams_come_back_from_an_archive(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    """With which attempts count, and in parts that a small call can read."""
    run_id = await start(store, retention_seconds=60)
    task = await ann.take()
    await write(store, chunk(task, "a", "\u2028"), chunk(task, "b", attempt=2), chunk(task, 1e300))
    await write(store, chunk(task, closes=True, attempt=2, begins=False), chunk(task, 1, name="n"))
    await store.write_logs(7, [LogChunk(run_id, 1, 1, "[1]")], most_bytes=1000)
    await ann.commit(task, ended(attempt=2, streams=1))
    await ann.finish(task, expected=2)
    names = ("tokens", "n", LOG_STREAM)
    before = [await read(store, run_id, name=name) for name in names]
    resumed = await read(store, run_id, 3, resumed=True)
    infos = await store.list_streams(run_id)
    lines = [(await store.export_runs({run_id: None})).lines[run_id]]
    other = MemoryStore()
    await other.restore_run(lines, retention_seconds=60)
    again = (await other.export_runs({run_id: None})).lines[run_id]
    for given in (lines, [again]):
        await clock.advance(61)
        assert (await store.sweep_runs()).deleted == 1
        assert await store.list_streams(run_id) == []
        assert await store.restore_run(given, retention_seconds=60) == "restored"
        for name, found in zip(names, before, strict=True):
            assert await read(store, run_id, name=name) == found
            assert await read(other, run_id, name=name) == found
        assert await read(store, run_id, 3, resumed=True) == resumed
        assert await store.list_streams(run_id) == infos
