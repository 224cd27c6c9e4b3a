"""Keys with the characters that URLs, fragments and shells read in their own way."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import AsyncIterator

import httpx
import pytest

from holdfast import App, Context, Retry
from holdfast.server import Server
from holdfast.server.access import KeyAccess
from holdfast.store.port import Store
from holdfast.worker import Worker
from tests.server.shop import HOST, KEY, Api
from tests.server.test_operations import start, until

HERE = {"Sec-Fetch-Site": "same-origin"}

app = App("keys")


@app.step(retry=Retry(attempts=1))
async def act(what: str) -> str:
    if what == "broken":
        raise ValueError("it is broken")
    return what


@app.workflow
async def nested(ctx: Context, last: str) -> list[str]:
    """Act twice within a task, from a callback of the loop, then in a task that fails."""

    async def twice() -> str:
        await act("first")
        return await act("second")

    async def ask() -> str:
        await ctx.request_approval("At all?")
        decision = await ctx.request_approval("Now?")
        return f"approved {decision.approved}"

    loop = asyncio.get_running_loop()
    called = loop.create_future()
    loop.call_soon(lambda: called.set_result(asyncio.ensure_future(act("called"))))
    found = [await (await called), *await asyncio.gather(twice(), ask())]

    async def end() -> str:
        return await act(last)

    return [*found, *await asyncio.gather(end(), end())]


@pytest.fixture
async def server(store: Store) -> AsyncIterator[Server]:
    """Provide a server that knows the app, and a worker of it."""
    worker = Worker(app, store)
    await worker.start()
    async with Server(store=store, auth=KeyAccess(KEY), app=app, hosts=[HOST]) as opened:
        yield opened
    await worker.stop(grace=0)


async def test_edge_19_keys_with_slashes_signs_and_tildes(
    api: Api, http: httpx.AsyncClient
) -> None:
    """Edge case 19. Each place that names a step or an approval finds it by such a key."""
    run_id = await start(api, "nested", "broken")
    run = f"/v1/runs/{run_id}"

    async def asked(title: str) -> str | None:
        found = (await api.ask("GET", f"/v1/approvals?run={run_id}"))["approvals"]
        return next((each["key"] for each in found if each["title"] == title), None)

    key = await until(lambda: asked("At all?"))
    assert await api.ask("POST", f"{run}/approvals", {"key": key, "approved": True})
    assert await until(lambda: asked("Now?")) == "ask/approve#2"
    await http.get(f"/login?key={KEY}")
    http.headers.update(HERE)  # as a browser's: it has a cookie from here on
    await decide_on_the_page(http, run_id)
    assert (await api.ask("GET", f"{run}?wait=30"))["status"] == "failed"

    keys = {each["key"] for each in (await api.ask("GET", f"{run}/steps"))["steps"]}
    assert {"~/act", "twice/act#2", "ask/approve#2"} <= keys
    page = (await http.get(f"/runs/{run_id}")).text
    links = re.findall(r'href="([^"]+/fork\?step=[^"]+)"', page)
    offered = {await chosen(http, html.unescape(each)) for each in links}
    assert {"~/act", "twice/act", "twice/act#2"} <= offered
    log = html.unescape((await http.get(f"/runs/{run_id}?tab=log")).text)
    for each in ("~/act", "twice/act#2", "ask/approve#2"):
        assert f">{each}</td>" in log
        await fork_from(api, http, run_id, each)


async def decide_on_the_page(http: httpx.AsyncClient, run_id: str) -> None:
    """Follow the link of the run's page to the approval, and approve it there."""
    page = (await http.get(f"/runs/{run_id}")).text
    link = re.search(r'href="(/approvals\?run=[^"#]+)#([^"]+)"', page)
    assert link is not None
    inbox = (await http.get(link[1])).text
    assert f'<a href="/approvals#{link[2]}">Now?</a>' in (await http.get("/")).text
    card = inbox[inbox.index(f'id="{link[2]}"') :]
    hidden = dict(re.findall(r'type="hidden" name="(key|id|back)" value="([^"]*)"', card))
    assert html.unescape(hidden["key"]) == "ask/approve#2"
    form = {**hidden, "approved": "yes"}
    answer = await http.post(f"/runs/{run_id}/do/decide", data=form)
    assert answer.status_code == 303, answer.text


async def chosen(http: httpx.AsyncClient, link: str) -> str:
    """Return the step that the form of a fork has chosen."""
    found = re.search(r"<option selected>([^<]+)</option>", (await http.get(link)).text)
    assert found is not None, link
    return html.unescape(found[1])


async def fork_from(api: Api, http: httpx.AsyncClient, run_id: str, key: str) -> None:
    """Fork a run from a step, over the API and with the form: what it had done before is kept."""
    forked = await api.ask("POST", f"/v1/runs/{run_id}/fork", {"step": key}, status=201)
    form = (await http.get(f"/runs/{run_id}/fork", params={"step": key})).text
    new = re.search(r'name="run_id" value="([^"]+)"', form)
    assert new is not None
    fields = {"run_id": new[1], "step": key}
    answer = await http.post(f"/runs/{run_id}/fork", data=fields)
    assert answer.status_code == 303, answer.text
    for each in (forked["run_id"], new[1]):
        log = (await api.ask("GET", f"/v1/runs/{each}/events"))["events"]
        types = [entry["type"] for entry in log]
        kept = [entry["key"] for entry in log[: types.index("WorkflowForked")]]
        assert key not in kept
        assert ("~/act" in kept) == (key != "~/act")
    if key != "~/act":
        body = {"step": key, "results": {"~/act": "another"}}
        other = await api.ask("POST", f"/v1/runs/{run_id}/fork", body, status=201)
        steps = (await api.ask("GET", f"/v1/runs/{other['run_id']}/steps"))["steps"]
        assert {each["key"]: each["result"] for each in steps}["~/act"] == "another"
