"""Streams whose run, caller or server changes while they are open."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import httpx
import pytest

from holdfast.server import Server
from holdfast.server.access import digest
from holdfast.server.api import attach
from holdfast.server.log_pages import read_log_part
from holdfast.server.problems import Problem
from holdfast.server.site import Site
from holdfast.server.tokens import TokenAccess
from holdfast.store.port import Store
from holdfast.types import ClippedEvent
from tests.server.shop import HOST, KEY, Api, app
from tests.server.test_attach import Stream, attached
from tests.server.test_operations import start, until


async def followed(stream: Stream) -> None:
    """Wait until a stream has sent what there is of its run."""
    assert await stream.begin() == 200
    assert ((await stream.event()) or ("",))[0] == "WorkflowStarted"


async def test_edge_3_nothing_follows_the_end(api: Api) -> None:
    """Edge case 3. An EventSource that is given 204 does not ask again."""
    run_id = await api.start()
    await api.ask("POST", f"/v1/runs/{run_id}/terminate")
    path = f"/v1/runs/{run_id}/attach"
    ended = await api.http.get(path)
    last = [line for line in ended.text.splitlines() if line.startswith("id: ")][-1]
    assert last == "id: end"
    for url in (path, f"/v1/workflows/checkout/runs/{run_id}/attach"):
        again = await api.http.get(url, headers={"Last-Event-ID": last.removeprefix("id: ")})
        assert (again.status_code, again.content) == (204, b"")


async def test_edge_4_a_run_that_is_deleted_while_it_is_followed(api: Api, server: Server) -> None:
    """Edge case 4. The stream says so; a caller that asks again is told that there is no run."""
    run_id = await api.start(7, retention="1ms")
    path = f"/v1/runs/{run_id}/attach"
    async with attached(server, path) as stream:
        await followed(stream)
        await server.site.client.runs.terminate(run_id)

        async def deleted() -> bool:
            return await server.site.client.retention.sweep() > 0

        await until(deleted)
        rest = await stream.rest()
    name, _, told = rest[-1]
    # The end may have been read before the run was deleted.
    assert name in ("bye", "end"), rest
    assert name == "end" or "deleted" in told["reason"]
    await api.ask("GET", path, headers={"Last-Event-ID": "0"}, status=404)


async def test_edge_4_a_run_that_is_gone_when_its_stream_looks_for_its_end(
    api: Api, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Edge case 4. The deletion comes between the end and the stream's look at it."""
    run_id = await api.start(7, retention="1ms")
    swept = asyncio.Event()

    async def late(site: Site, run_id: UUID, since: int) -> list[ClippedEvent]:
        if since > 0:
            await swept.wait()
        return await read_log_part(site, run_id, since)

    monkeypatch.setattr(attach, "read_log_part", late)
    async with attached(server, f"/v1/runs/{run_id}/attach") as stream:
        await followed(stream)
        await server.site.client.runs.terminate(run_id)

        async def deleted() -> bool:
            return await server.site.client.retention.sweep() > 0

        await until(deleted)
        swept.set()
        name, _, told = (await stream.rest())[-1]
    assert (name, told["reason"]) == ("bye", "the run was deleted")


@pytest.mark.usefixtures("worker")
async def test_edge_4_a_run_that_continues_as_new_names_the_next(api: Api, server: Server) -> None:
    """Edge case 4. Its stream ends with its status, after the entry that has the next run's id."""
    run_id = await start(api, "countdown", 2)
    seen = [run_id]
    for status in ("continued", "continued", "completed"):
        async with attached(server, f"/v1/runs/{seen[-1]}/attach") as stream:
            assert await stream.begin() == 200
            events = await stream.rest()
        assert [events[-1][0], events[-1][2]["status"]] == ["end", status]
        if status == "continued":
            name, _, entry = events[-2]
            assert name == "WorkflowContinuedAsNew"
            seen.append(entry["details"]["run_id"])
    assert len(set(seen)) == 3


async def test_edge_4_a_fork_does_not_disturb_who_follows_the_origin(
    api: Api, server: Server
) -> None:
    """Edge case 4. The origin's stream continues; the fork's begins with the entries it kept."""
    run_id = await api.start()
    await api.ask("POST", f"/v1/runs/{run_id}/signals/go", 1)
    async with attached(server, f"/v1/runs/{run_id}/attach") as stream:
        await followed(stream)
        fork = await api.ask("POST", f"/v1/runs/{run_id}/fork", {"index": 2}, status=201)
        await api.ask("POST", f"/v1/runs/{run_id}/signals/go", 2)
        await api.ask("POST", f"/v1/runs/{run_id}/terminate")
        names = [name for name, _, _ in await stream.rest()]
    assert [each for each in names if each == "SignalReceived"] == ["SignalReceived"] * 2
    assert names[-1] == "end"
    async with attached(server, f"/v1/runs/{fork['run_id']}/attach") as stream:
        await followed(stream)
        assert (await stream.event() or ("",))[0] == "SignalReceived"
    assert (await api.ask("GET", f"/v1/runs/{fork['run_id']}"))["status"] == "running"


async def test_edge_31_a_token_that_is_revoked_ends_its_streams(
    store: Store, tmp_path: Path
) -> None:
    """Edge case 31. That of the API and that of a page; those of another token stay."""
    path = tmp_path / "tokens"
    path.touch(mode=0o600)
    lines = [f"{name} write {digest(name)}\n" for name in ("ann", "bob")]
    path.write_text("".join(lines))
    served = Server(store=store, auth=TokenAccess(path), app=app, hosts=[HOST], stream_seconds=60)
    async with (
        served as server,
        httpx.AsyncClient(transport=httpx.ASGITransport(server), base_url=f"http://{HOST}") as http,
    ):
        run_id = str((await server.site.client.start("shop/checkout", 7)).run_id)
        assert (await http.get("/login?key=ann")).status_code == 303
        attach = f"/v1/runs/{run_id}/attach"
        page = asyncio.create_task(http.get(f"/runs/{run_id}?live=1"))
        async with (
            attached(server, attach, authorization="Bearer ann") as hers,
            attached(server, attach, authorization="Bearer bob") as his,
        ):
            await followed(hers)
            await followed(his)

            async def three() -> bool:
                return server.site.streams.count == 3

            await until(three)
            path.write_text(lines[1])
            await server.site.client.signal(run_id, "go", 1)
            assert [name for name, _, _ in await hers.rest()][-1] == "bye"
            assert (await his.event() or ("",))[0] == "SignalReceived"
            assert "event: bye" in (await asyncio.wait_for(page, 30)).text
            headers = {"Authorization": "Bearer ann", "Last-Event-ID": "0"}
            assert (await http.get(attach, headers=headers)).status_code == 401
            assert (await http.get(f"/runs/{run_id}?live=1")).status_code == 401


async def test_edge_31_a_token_that_is_revoked_ends_its_waits(store: Store, tmp_path: Path) -> None:
    """Edge case 31. A wait is answered neither with a result nor with a message."""
    path = tmp_path / "tokens"
    path.touch(mode=0o600)
    path.write_text(f"ann write {digest('ann')}\nboss admin {digest('boss')}\n")
    served = Server(store=store, auth=TokenAccess(path), app=app, hosts=[HOST], stream_seconds=60)
    async with (
        served as server,
        httpx.AsyncClient(transport=httpx.ASGITransport(server), base_url=f"http://{HOST}") as http,
    ):
        http.headers["Authorization"] = "Bearer ann"
        run_id = str((await server.site.client.start("shop/checkout", 7)).run_id)
        await server.site.client.queues.create("parcels")
        waits = [
            asyncio.create_task(http.get(f"/v1/runs/{run_id}?wait=30")),
            asyncio.create_task(
                http.post("/v1/workflows/checkout/runs?wait=30", json={"input": 8})
            ),
            asyncio.create_task(
                http.post("/v1/message-queues/parcels/receive", json={"wait": 30, "limit": 1})
            ),
        ]

        async def all_wait() -> bool:
            return server.site.streams.count == 3

        await until(all_wait)
        path.write_text(f"boss admin {digest('boss')}\n")
        for answer in await asyncio.gather(*waits):
            assert answer.status_code == 401, answer.text
        assert server.site.streams.count == 0
        await server.site.client.queues.send("parcels", 1)
        [message] = await server.site.client.queues.receive("parcels")
        assert message.attempts == 1


async def test_edge_39_retention_deletes_a_run_that_is_on_the_screen(
    store: Store, server: Server
) -> None:
    """Edge case 39. Its stream ends, and its page and its forms say that there is no such run."""
    transport = httpx.ASGITransport(server)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as browser:
        await browser.get(f"/login?key={KEY}")
        handle = await server.site.client.start("shop/checkout", 7, retention="1ms")
        server.site.stream_seconds = 60.0
        assert (await browser.get(f"/runs/{handle.run_id}")).status_code == 200
        following = asyncio.create_task(browser.get(f"/runs/{handle.run_id}?live=1"))

        async def open_() -> bool:
            return server.site.streams.count == 1

        await until(open_)
        await server.site.client.runs.terminate(handle.run_id)

        async def deleted() -> bool:
            return await server.site.client.retention.sweep() > 0

        await until(deleted)
        assert (await asyncio.wait_for(following, 30)).text.endswith("event: gone\ndata: \n\n")
        assert (await browser.get(f"/runs/{handle.run_id}?live=1")).status_code == 404
        here = {"Sec-Fetch-Site": "same-origin"}
        for answer in (
            await browser.get(f"/runs/{handle.run_id}"),
            await browser.post(f"/runs/{handle.run_id}/do/cancel", headers=here),
            await browser.get(f"/runs/{handle.run_id}/fork"),
        ):
            assert answer.status_code == 404
            assert answer.headers["content-type"].startswith("text/html")
            assert "There is no such run" in answer.text
        assert str(handle.run_id) not in (await browser.get("/runs")).text


async def test_a_stream_whose_log_was_set_back_ends_with_bye(
    api: Api, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: it was cut off, with a traceback in the log. The next request is told why."""

    async def refuse(*_: object) -> list[ClippedEvent]:
        raise Problem(400, "bad-event-id", "the log of the run has no entry 7 yet")

    run_id = await api.start()
    async with attached(server, f"/v1/runs/{run_id}/attach") as stream:
        monkeypatch.setattr(server.site.hub, "after", refuse)
        assert await stream.begin() == 200
        assert [name for name, _, _ in await stream.rest()][-1] == "bye"
