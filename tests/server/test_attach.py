"""T10: follow a run, and resume exactly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import pytest

from holdfast.client import Client
from holdfast.server import Server, sse
from holdfast.server.guard import StreamGate
from holdfast.server.hub import QUIET_SECONDS, quiet_seconds
from holdfast.store.port import Store
from holdfast.types import ClippedEvent
from tests.server.shop import HOST, KEY, Api
from tests.server.test_operations import LIMIT_SECONDS, start, until


class Stream:
    """A stream of a server in this process, read event by event; it may be left, and not read."""

    def __init__(self, server: Server, path: str, headers: dict[str, str]) -> None:
        self._parts: asyncio.Queue[dict[str, Any]] = asyncio.Queue(1)
        self._gone, self._text = asyncio.Event(), ""
        self._asked = False
        given = {"host": HOST, "authorization": f"Bearer {KEY}", **headers}
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
            "client": ("127.0.0.1", 1),
        }
        self.task = asyncio.create_task(server(scope, self._receive, self._parts.put))

    async def begin(self) -> int:
        async with asyncio.timeout(LIMIT_SECONDS):
            return int((await self._parts.get())["status"])

    async def event(self) -> tuple[str, str | None, Any] | None:
        """Return the next event: its type, its id and its data; None at the end."""
        async with asyncio.timeout(LIMIT_SECONDS):
            while True:
                while "\n\n" in self._text:
                    block, _, self._text = self._text.partition("\n\n")
                    lines = [line.partition(": ") for line in block.splitlines()]
                    fields = {name: value for name, _, value in lines}
                    if "event" in fields:
                        return fields["event"], fields.get("id"), json.loads(fields["data"])
                part = await self._parts.get()
                if not part.get("more_body"):
                    return None
                self._text += part["body"].decode()

    async def part(self) -> str:
        """Return what is sent next, of which `event` sees nothing."""
        async with asyncio.timeout(LIMIT_SECONDS):
            return str((await self._parts.get())["body"].decode())

    async def rest(self) -> list[tuple[str, str | None, Any]]:
        found: list[tuple[str, str | None, Any]] = []
        while (event := await self.event()) is not None:
            found.append(event)
        return found

    def leave(self) -> None:
        self._gone.set()

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}


@asynccontextmanager
async def attached(server: Server, path: str, **headers: str) -> AsyncIterator[Stream]:
    stream = Stream(server, path, {name.replace("_", "-"): text for name, text in headers.items()})
    try:
        yield stream
    finally:
        stream.leave()
        stream.task.cancel()
        await asyncio.gather(stream.task, return_exceptions=True)


@pytest.mark.usefixtures("worker")
async def test_a_stream_is_the_log_from_each_place_on(api: Api, server: Server) -> None:
    run_id = await start(api, "desk", 7)
    path = f"/v1/runs/{run_id}/attach"
    async with attached(server, path) as live:
        assert await live.begin() == 200
        first = await live.event()
        assert first is not None
        assert first[:2] == ("WorkflowStarted", "0")
        decide = {"key": "approve", "approved": False}

        async def decided() -> bool:
            answer = await api.http.post(f"/v1/runs/{run_id}/approvals", json=decide)
            return answer.status_code == 200

        await until(decided)
        seen = [first, *await live.rest()]
    assert seen[-1][0] == "end"
    assert seen[-1][2]["output"] == "refused by key"
    log = (await api.ask("GET", f"/v1/runs/{run_id}/events"))["events"]
    assert [each[2] for each in seen[:-1]] == log
    assert [each[1] for each in seen] == [*(str(idx) for idx in range(len(log))), "end"]
    for idx in range(len(log)):
        async with attached(server, path, last_event_id=str(idx)) as resumed:
            assert await resumed.begin() == 200
            assert await resumed.rest() == seen[idx + 1 :]
        async with attached(server, f"{path}?after={idx}") as resumed:
            await resumed.begin()
            assert await resumed.rest() == seen[idx + 1 :]
    assert (await api.http.get(path, headers={"Last-Event-ID": "end"})).status_code == 204
    nested = await api.http.get(f"/v1/workflows/desk/runs/{run_id}/attach")
    assert nested.text.count("event: ") == len(seen)


async def test_ids_that_are_not_of_the_stream_are_refused(api: Api) -> None:
    run_id = await api.start()
    path = f"/v1/runs/{run_id}/attach"
    for wrong in ("x", "-1", "99", "1.0", "", "9" * 20):
        await api.ask("GET", path, headers={"Last-Event-ID": wrong}, status=400)
    await api.ask("GET", f"{path}?after=-1", status=400)
    await api.ask("GET", f"{path}?after=99", status=400)
    await api.ask("GET", f"/v1/runs/{uuid4()}/attach", status=404)


async def test_edge_5_many_followers_are_one_question_and_none_holds_up_others(
    api: Api, server: Server, store: Store
) -> None:
    """One of a thousand does not read; the others are told all the same."""
    server.site.streams = StreamGate(1_001, 1_001)
    runs = [await api.start(number) for number in range(20)]
    followers: list[Stream] = []
    stuck = Stream(server, f"/v1/runs/{runs[0]}/attach", {})  # nobody reads it
    try:
        for wave in range(0, 1_000, 200):  # so many requests may begin at once
            begun = [
                Stream(server, f"/v1/runs/{runs[number % 20]}/attach", {})
                for number in range(wave, wave + 200)
            ]
            followers += begun
            for each in begun:
                assert await each.begin() == 200
                assert (await each.event() or ("",))[0] == "WorkflowStarted"
        before = server.site.hub.ticks
        async with Client(store=store) as client:
            for run_id in runs:
                await client.signal(run_id, "go", run_id)
        for number, each in enumerate(followers):
            event = await each.event()
            assert event is not None
            assert event[0] == "SignalReceived"
            assert runs[number % 20] in json.dumps(event[2]["details"])
        assert server.site.hub.ticks - before < 60  # not one for each follower
    finally:
        for each in (*followers, stuck):
            each.leave()
            each.task.cancel()
        await asyncio.gather(*(each.task for each in (*followers, stuck)), return_exceptions=True)
    assert server.site.streams.count == 0


async def test_comments_of_a_quiet_stream_ask_the_database_nothing(
    api: Api, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many streams there is a comment each few milliseconds."""
    monkeypatch.setattr(sse, "COMMENT_SECONDS", 0.01)
    asked, after = list[int](), server.site.hub.after

    async def counted(run_id: UUID, position: int) -> list[ClippedEvent]:
        asked.append(position)
        return await after(run_id, position)

    monkeypatch.setattr(server.site.hub, "after", counted)
    run_id = await api.start()
    async with attached(server, f"/v1/runs/{run_id}/attach") as stream:
        await stream.begin()
        await stream.event()
        for _ in range(5):
            assert (await stream.part()).strip() == ":"
        await api.ask("POST", f"/v1/runs/{run_id}/signals/go")
        event = await stream.event()
    assert event is not None
    assert event[:2] == ("SignalReceived", "1")
    assert asked in ([1], [1, 2])


async def test_streams_say_goodbye_when_the_server_closes(api: Api, server: Server) -> None:
    run_id = await api.start()
    waiting = asyncio.create_task(api.ask("GET", f"/v1/runs/{run_id}?wait=60"))
    async with attached(server, f"/v1/runs/{run_id}/attach") as stream:
        await stream.begin()
        await stream.event()
        await asyncio.sleep(0)
        server.site.closing.set()
        assert [name for name, _, _ in await stream.rest()] == ["bye"]
    assert (await waiting)["status"] == "running"


async def test_a_stream_ends_when_its_time_is_up_or_its_caller_may_not_read(
    api: Api, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await api.start()
    server.site.stream_seconds = 0.1
    async with attached(server, f"/v1/runs/{run_id}/attach") as stream:
        await stream.begin()
        assert [name for name, _, _ in await stream.rest()] == ["WorkflowStarted", "bye"]
    server.site.stream_seconds = 60
    async with attached(server, f"/v1/runs/{run_id}/attach") as stream:
        await stream.begin()
        await stream.event()
        monkeypatch.setattr(server.site.access, "still", lambda _: False)
        await api.ask("POST", f"/v1/runs/{run_id}/signals/go")
        assert [name for name, _, _ in await stream.rest()] == ["bye"]


async def test_streams_and_waits_are_bounded(api: Api, server: Server) -> None:
    """A caller that leaves leaves nothing behind."""
    run_id = await api.start()
    server.site.streams = StreamGate(3, 2)
    path = f"/v1/runs/{run_id}/attach"
    async with attached(server, path) as first, attached(server, path) as second:
        assert (await first.begin(), await second.begin()) == (200, 200)
        many = await api.ask("GET", path, status=429)
        assert many["type"] == "urn:holdfast:problem:too-many-streams"
        await api.ask("GET", f"/v1/runs/{run_id}?wait=5", status=429)

    async def none() -> bool:
        return server.site.streams.count == 0

    await until(none)
    async with attached(server, f"/v1/runs/{run_id}?wait=60"):

        async def one() -> bool:
            return server.site.streams.count == 1

        await until(one)
    await until(none)


def test_logs_on_which_nothing_happens_are_asked_for_as_seldom_as_it_costs() -> None:
    """One follower sees the next event soon; thousands do not keep the database busy."""
    assert quiet_seconds(0.0005) == QUIET_SECONDS[0]
    assert quiet_seconds(0.02) == pytest.approx(0.4)
    assert quiet_seconds(3.0) == QUIET_SECONDS[1]
