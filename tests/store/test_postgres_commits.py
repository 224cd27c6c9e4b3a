"""Commits whose batch holds a bad part, whose answer is lost, or that leave a gap."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import asyncpg
import pytest
from contract.actors import ORDER, ManualWorker, log, new_run, signal, start, step
from scene import Scene, finished, turn, yielded

from holdfast.errors import DatabaseError, DatabaseUnavailable, PayloadError
from holdfast.store.postgres import PostgresStore
from holdfast.store.postgres.commits import commit_arguments
from holdfast.store.postgres.database import Database, call_seconds
from holdfast.types import Event, Finish, NewSignal, TurnCommit


class LosingProxy:
    """Passes bytes on to the server, and cuts the connection when an answer is to be lost."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        port = query.get("port", parts.port or 5432)
        self._target = query.get("host", parts.hostname or "localhost"), int(port)
        self._parts = parts
        self._flows: set[asyncio.Task[None]] = set()
        self.losing = False
        self.url = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[LosingProxy]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        account, at, _ = self._parts.netloc.rpartition("@")
        place = f"{account}{at}127.0.0.1:{port}{self._parts.path}"
        self.url = f"postgresql://{place}?sslmode=disable"
        yield self
        server.close()
        for flow in self._flows:
            flow.cancel()
        await asyncio.gather(*self._flows, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self._target
        if host.startswith("/"):
            back = await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        else:
            back = await asyncio.open_connection(host, port)
        for flow in (self._pass(reader, back[1]), self._answer(back[0], writer, back[1])):
            task = asyncio.ensure_future(flow)
            self._flows.add(task)
            task.add_done_callback(self._flows.discard)

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            target.write(data)
        target.close()

    async def _answer(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, back: asyncio.StreamWriter
    ) -> None:
        while data := await source.read(65_536):
            if self.losing:
                self.losing = False
                back.close()
                break
            target.write(data)
        target.close()


async def test_commit_whose_answer_is_lost_is_recognised(scene: Scene, ann: ManualWorker) -> None:
    """Trap 23. The connection is cut behind the COMMIT; the repetition finds its own events."""
    await scene.store.start_runs([new_run() for _ in range(3)])
    async with LosingProxy(scene.url).running() as proxy:
        store = PostgresStore(proxy.url, connections=1)
        await store.open()
        tasks = (await ManualWorker(store, "ann").claim()).tasks
        parts = [turn(tasks[0]), yielded(tasks[1], "packed"), finished(tasks[2])]
        token = uuid4()
        await store.commit("ann", uuid4(), [turn(tasks[0])])
        parts[0] = turn(tasks[0], expected=2)
        proxy.losing = True
        with pytest.raises(DatabaseUnavailable):
            await store.commit("ann", token, parts)
        assert (await store.commit("ann", token, parts)).refused == {}
        await store.close()
    logs = await scene.store.read_events([(task.run_id, 1) for task in tasks])
    assert [len(logs[task.run_id]) for task in tasks] == [2, 1, 1]
    runs = await scene.store.get_runs([task.run_id for task in tasks])
    assert [runs[task.run_id].state for task in tasks] == ["running", "waiting", "completed"]


async def test_repetition_does_not_undo_what_came_since(scene: Scene, ann: ManualWorker) -> None:
    """Trap 23. The run was woken and claimed again between the commit and its repetition."""
    run_id = await start(scene.store)
    part, token = yielded(await ann.take(), "packed"), uuid4()
    await scene.store.commit("ann", token, [part])
    await signal(scene.store, run_id)
    task = await ann.take()
    assert (await scene.store.commit("ann", token, [part])).refused == {}
    assert not (await ann.commit(task)).refused
    assert await scene.idx(run_id) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "details",
    ["{not json", "[1,", '"\x00"', '"\ud800"'],
    ids=["malformed", "unfinished", "nul", "surrogate"],
)
async def test_one_bad_payload_fails_alone(scene: Scene, ann: ManualWorker, details: str) -> None:
    """Trap 20. The rest of its batch commits; the refusal says what is wrong."""
    await scene.store.start_runs([new_run() for _ in range(7)])
    tasks = (await ann.claim()).tasks
    bad = tasks[4]
    parts = [
        turn(task, Event("StepCompleted", "charge", details if task is bad else "1", 0))
        for task in tasks
    ]
    refused = (await scene.store.commit("ann", uuid4(), parts)).refused
    assert list(refused) == [bad.run_id]
    assert refused[bad.run_id].reason == "invalid"
    assert refused[bad.run_id].message
    assert [await scene.idx(task.run_id) == [0, 1] for task in tasks].count(False) == 1
    assert not (await ann.commit(bad)).refused


async def test_bad_output_fails_alone(scene: Scene, ann: ManualWorker) -> None:
    """Trap 20. Nothing of that run is written, its events neither."""
    await scene.store.start_runs([new_run() for _ in range(2)])
    good, bad = (await ann.claim()).tasks
    end = Event("WorkflowCompleted", None, None, 0)
    parts = [finished(good), turn(bad, step(), end, then=Finish("completed", "{"))]
    refused = (await scene.store.commit("ann", uuid4(), parts)).refused
    assert [(run_id, refusal.reason) for run_id, refusal in refused.items()] == [
        (bad.run_id, "invalid")
    ]
    assert await scene.idx(good.run_id) == [0, 1]
    assert await scene.idx(bad.run_id) == [0]


async def test_a_value_beyond_a_limit_of_the_server_fails_alone(
    scene: Scene, ann: ManualWorker
) -> None:
    """Trap 20. It is as little to be repeated as one that is malformed."""
    await scene.store.start_runs([new_run() for _ in range(7)])
    tasks = (await ann.claim()).tasks
    bad, deep = tasks[2], 200_000
    parts = [
        turn(
            task, Event("StepCompleted", "a", "[" * deep + "]" * deep, 0) if task is bad else step()
        )
        for task in tasks
    ]
    refused = (await scene.store.commit("ann", uuid4(), parts)).refused
    assert {run_id: refusal.reason for run_id, refusal in refused.items()} == {
        bad.run_id: "invalid"
    }
    assert "54001" in refused[bad.run_id].message
    assert [await scene.idx(task.run_id) for task in tasks].count([0, 1]) == 6


FAILING = """
create function public.fail() returns trigger language plpgsql as $$
begin
    if new.key like 'bad%' then
        raise exception 'no reason that anybody knows' using errcode = 'XX000';
    end if;
    return new;
end $$;
create trigger fail before insert on holdfast.events for each row execute function public.fail();
"""


async def test_an_unknown_error_is_traced_to_one_part(scene: Scene, ann: ManualWorker) -> None:
    """Trap 10. The others of its batch are committed, and their workers are not lost."""
    await scene.store.start_runs([new_run() for _ in range(7)])
    tasks = (await ann.claim()).tasks
    await (await scene.session()).connection.execute(FAILING)
    parts = [turn(task, step("bad" if task is tasks[5] else "good")) for task in tasks]
    refused = (await scene.store.commit("ann", uuid4(), parts)).refused
    assert {run_id: refusal.reason for run_id, refusal in refused.items()} == {
        tasks[5].run_id: "failed"
    }
    assert "no reason that anybody knows (XX000)" in refused[tasks[5].run_id].message
    assert [await scene.idx(task.run_id) for task in tasks].count([0, 1]) == 6


async def test_an_error_of_every_part_is_the_servers(scene: Scene, ann: ManualWorker) -> None:
    """No run is stuck for what is not its own."""
    await scene.store.start_runs([new_run() for _ in range(4)])
    tasks = (await ann.claim()).tasks
    await (await scene.session()).connection.execute(FAILING)
    with pytest.raises(DatabaseError, match="no reason that anybody knows"):
        await scene.store.commit("ann", uuid4(), [turn(task, step("bad")) for task in tasks])
    assert [await scene.idx(task.run_id) for task in tasks] == [[0]] * 4


async def test_a_heavy_call_that_the_server_cuts_off_is_made_in_parts(
    scene: Scene, ann: ManualWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement_timeout that all of it does not keep, and a half does."""
    await scene.store.start_runs([new_run() for _ in range(4)])
    tasks = (await ann.claim()).tasks
    sizes, call = list[int](), Database.row_untranslated

    async def limited(
        self: Database, function: str, arguments: Sequence[Any], *, weight: int = 0, **options: Any
    ) -> Any:
        if function == "commit":
            sizes.append(weight)
            if weight > 4 << 20:
                raise (TimeoutError if len(sizes) == 1 else asyncpg.QueryCanceledError)("cut off")
        return await call(self, function, arguments, weight=weight, **options)

    monkeypatch.setattr(Database, "row_untranslated", limited)
    long = "x" * (2 << 20)
    parts = [turn(task, step(result=long)) for task in tasks[:3]] + [turn(tasks[3], step())]
    assert not (await scene.store.commit("ann", uuid4(), parts)).refused
    assert [size >> 20 for size in sizes] == [6, 4, 2, 2, 2]
    assert [await scene.idx(task.run_id) for task in tasks] == [[0, 1]] * 4


def test_a_long_call_is_given_longer() -> None:
    """Else a slow connection would be cut off each time, and the call repeated for ever."""
    assert call_seconds(0) == 20
    assert call_seconds(16 << 20) >= (16 << 20) / 1e6


async def test_busy_run_does_not_hold_up_its_batch(scene: Scene, ann: ManualWorker) -> None:
    """Storage rule 7. Another session holds one run's row; the same call writes it later."""
    await scene.store.start_runs([new_run() for _ in range(5)])
    tasks = (await ann.claim()).tasks
    parts, token = [yielded(task) for task in tasks], uuid4()
    session = await scene.session()
    async with session.transaction():
        await session.call("_lock_turns", [tasks[2].run_id])
        refused = (await scene.store.commit("ann", token, parts)).refused
        assert {run_id: refusal.reason for run_id, refusal in refused.items()} == {
            tasks[2].run_id: "busy"
        }
    assert (await scene.store.commit("ann", token, parts)).refused == {}
    assert [await scene.idx(task.run_id) for task in tasks] == [[0, 1]] * 5


async def test_append_is_two_sided(scene: Scene, ann: ManualWorker) -> None:
    """T1. Neither a gap nor an event behind the end can be written."""
    run_id = await start(scene.store)
    task = await ann.take()
    gap = await ann.refusal(task, expected=2)
    assert (gap.reason, gap.tail) == ("conflict", [])
    assert await scene.idx(run_id) == [0]
    await ann.finish(task)
    behind = await ann.refusal(task, expected=2)
    assert (behind.reason, behind.tail) == ("lost", [])
    over = await ann.refusal(task, expected=1)
    assert [event.type for event in over.tail] == ["WorkflowCompleted"]
    assert await scene.idx(run_id) == [0, 1]


async def test_run_twice_in_one_call_is_refused(scene: Scene, ann: ManualWorker) -> None:
    """Storage rule 5. By the store, and by SQL for those who call it themselves."""
    await start(scene.store)
    task = await ann.take()
    with pytest.raises(ValueError, match="twice"):
        await scene.store.commit("ann", uuid4(), [turn(task), turn(task)])
    session = await scene.session()
    with pytest.raises(Exception, match="twice"):
        await session.commit("ann", turn(task), turn(task))
    assert await scene.idx(task.run_id) == [0]


async def test_tail_keeps_the_text_that_was_recorded(scene: Scene, ann: ManualWorker) -> None:
    """Keys keep their order and numbers their digits, in a conflict's tail as in a log."""
    run_id = await start(scene.store)
    task = await ann.take()
    text = '{"b": 1e300, "a":   12345678901234567890.10, "c": null}'
    await scene.store.signal_runs([NewSignal(run_id, "packed", text)])
    [told] = (await ann.refusal(task)).tail
    assert told.details == '{"signal_name":"packed","input":' + text + "}"
    assert (await log(scene.store, run_id))[1] == told


async def test_refused_value_of_a_start_refuses_the_call(scene: Scene) -> None:
    """Nothing of the call is written."""
    with pytest.raises(PayloadError):
        await scene.store.start_runs([new_run(), new_run(input="{")])
    assert await scene.value("select count(*) from holdfast.runs") == 0


async def test_workers_of_a_former_release_are_given_details_as_json(
    scene: Scene, ann: ManualWorker
) -> None:
    """They run on while others are replaced, and a text would be taken for the value."""
    run_id = await start(scene.store)
    task = await ann.take()
    await signal(scene.store, run_id)
    former = commit_arguments("ann", uuid4(), [turn(task, step("charge"))])[:-3]
    [row] = await scene.watcher.call("commit", *former)
    [[_, reason, [[_, _, told, _]]]] = json.loads(row["refused"])
    assert (reason, told["signal_name"]) == ("conflict", "packed")
    await scene.store.commit("ann", uuid4(), [yielded(task, "packed", expected=2)])
    await signal(scene.store, run_id)
    claimed, _ = await scene.watcher.call(
        "claim_tasks", "ann", ["default"], ORDER, 1, 30.0, 0.0, 0.25, 5, None
    )
    assert json.loads(claimed["tail"])[-1][2]["signal_name"] == "packed"


async def test_workers_of_a_former_release_are_not_given_the_properties_of_runs(
    scene: Scene,
) -> None:
    await start(scene.store, key="order-7", headers={"tenant": "acme"})
    claimed, _ = await scene.watcher.call(
        "claim_tasks",
        "ann",
        ["default"],
        ORDER,
        1,
        30.0,
        0.0,
        0.25,
        5,
        None,
        None,
        None,
        None,
        True,
    )
    assert (claimed["input"], claimed["run_key"], claimed["headers"]) == ("null", None, None)


async def test_workers_of_a_former_release_are_not_told_of_undelivered_signals(
    scene: Scene, ann: ManualWorker
) -> None:
    await start(scene.store)
    task, target = await ann.take(), uuid4()
    told = f'{{"run_id":"{target}","signal_name":"go","input":1,"signal_id":"s"}}'
    part = TurnCommit(
        task.run_id,
        task.lease_no,
        1,
        [Event("SignalSent", "signal", told, 0)],
        None,
        True,
        (target,),
    )
    arguments = commit_arguments("ann", uuid4(), [part])
    [row] = await scene.watcher.call("commit", *arguments[:-2])
    assert (row["refused"], row["undelivered"]) == (None, None)
