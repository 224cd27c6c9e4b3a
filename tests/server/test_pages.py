"""The dashboard as HTML: what pages say, what forms do, and what they refuse."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit
from uuid import UUID, uuid4

import httpx
import pytest
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast import App, Context, Limit, Retry
from holdfast.client import Client
from holdfast.errors import RunNotFound, StepFailed
from holdfast.server import Level, Principal, Server
from holdfast.server.access import KeyAccess
from holdfast.server.pages.graph import draw_flow, layers_of
from holdfast.server.pages.table import TABLE
from holdfast.store.port import Store
from holdfast.types import AlertRule, FlowShape, NewRun, StepShape
from holdfast.values.trace_ids import trace_text
from holdfast.worker import Worker, WorkerOptions
from tests.server.desk import Order, app, checkout, refund, render, rest
from tests.server.shop import HOST, KEY

HOSTILE = "<script>alert(1)</script>\"onload='x'\u202e"
HERE = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture
async def server(store: Store) -> AsyncIterator[Server]:
    """Provide a server on the store, which knows the app."""
    async with Server(store=store, auth=KeyAccess(KEY), app=app, hosts=[HOST]) as opened:
        yield opened


@pytest.fixture
async def browser(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    """Provide a browser that has opened the link with the key."""
    transport = httpx.ASGITransport(server)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as client:
        answer = await client.get(f"/login?key={KEY}&next=/runs")
        assert (answer.status_code, answer.headers["location"]) == (303, "/runs")
        yield client


async def page(browser: httpx.AsyncClient, path: str, status: int = 200) -> str:
    answer = await browser.get(path)
    assert answer.status_code == status, f"{path}: {answer.status_code} {answer.text[:2000]}"
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    return answer.text


async def send(
    browser: httpx.AsyncClient, path: str, status: int = 303, **fields: str
) -> httpx.Response:
    answer = await browser.post(path, data=fields, headers=HERE)
    assert answer.status_code == status, f"{path}: {answer.status_code} {answer.text[:2000]}"
    return answer


async def start(server: Server, input: object = 7, **options: Any) -> str:
    handle = await server.site.client.start(checkout, input, **options)
    return str(handle.run_id)


async def test_the_list_shows_runs_and_the_search_leads_to_one(
    server: Server, browser: httpx.AsyncClient
) -> None:
    assert "No run yet" in await page(browser, "/runs")
    run = await start(server, key="order-7")
    html = await page(browser, "/runs")
    assert "order-7" in html
    assert "queued" in html
    assert "order-7" in await page(browser, "/")
    filtered = "/runs?q=queued+workflow:checkout+input.a.b=1"
    assert "order-7" not in await page(browser, filtered)
    await start(server, {"a": {"b": 1}}, key="order-8")
    assert "order-8" in await page(browser, filtered)
    assert "No run fits" in await page(browser, "/runs?state=failed")
    for text in ("desk/checkout/order-7", "checkout/order-7", run, run[:13]):
        answer = await browser.get("/runs", params={"q": text})
        assert (answer.status_code, answer.headers["location"]) == (303, f"/runs/{run}"), text
    html = await page(browser, "/runs?q=checkout/nobody&state=queued", 404)
    assert "no run was started as" in html
    assert 'name="q" value="checkout/nobody"' in html  # to be corrected
    assert "data-connect" not in html


async def test_the_search_takes_what_the_list_shows(
    server: Server, browser: httpx.AsyncClient
) -> None:
    """A key, the last digits of an id, the name of a workflow and a tag, without a word before."""
    run = await start(server, key="order 7", tags=["vip"])
    other = await start(server, key="12345678", tags=["vip", "big order"])
    for tag in ("beef", "checkout"):
        await start(server, tags=[tag])

    async def leads(text: str) -> str:
        answer = await browser.get("/runs", params={"q": text})
        assert answer.status_code == 303, f"{text}: {answer.text[-300:]}"
        return str(answer.headers["location"])

    for text in ('"order 7"', run[-12:], run[-12:].upper(), run[-6:], 'failed "order 7"'):
        assert await leads(text) == f"/runs/{run}", text
    assert await leads("12345678") == f"/runs/{other}"  # although an id may begin so
    for text, where, found in (
        ("checkout", "workflow:checkout", 4),  # rather than the tag
        ("desk/checkout", "workflow:desk/checkout", 4),
        ("vip", "tag:vip", 2),
        ("beef", "tag:beef", 1),
        ('queued "big order"', 'queued tag:"big order"', 1),
        ("failed vip", "failed tag:vip", 0),
    ):
        location = await leads(text)
        assert parse_qs(urlsplit(location).query)["q"] == [where]
        html = await page(browser, location)
        assert len(re.findall(r'id="r-([0-9a-f]{32})"', html)) == found, text
    narrowed = '"order 7" vip'  # fault: it led to the run, whatever the second word was
    for where in ('key:"order 7" vip', 'key:"order 7" tag:vip'):
        narrowed = parse_qs(urlsplit(await leads(narrowed)).query)["q"][0]
        assert narrowed == where
    kept = await browser.get("/runs?q=vip&since=1h")
    assert kept.headers["location"] == f"/runs?{urlencode({'q': 'tag:vip', 'since': '1h'})}"
    for text in ("nobody", "ffffffffffff", "a/b"):
        await page(browser, f"/runs?q={text}", 404)


async def test_each_chip_says_how_many_runs_there_are(
    server: Server, browser: httpx.AsyncClient
) -> None:
    paused, ended = await start(server), await start(server)
    for _ in range(3):
        await start(server)
    await server.site.client.runs.pause(paused)
    await server.site.client.runs.terminate(ended)
    html = await page(browser, "/runs")
    chips = re.findall(r">([a-z ]+ [0-9,+]+)</a>", html)
    assert chips[:2] == ["stuck 0", "failed 0"]
    assert {"queued 3", "paused 1", "terminated 1", "running 0"} <= set(chips)
    assert len(chips) == 11


async def test_a_run_that_asks_says_what_it_asks(
    server: Server, browser: httpx.AsyncClient, store: Store
) -> None:
    worker = Worker(app, store)
    await worker.start()
    handle = await server.site.client.start(refund, Order(77))
    while (await server.site.client.runs.get(handle.run_id)).state != "waiting":
        await asyncio.sleep(0.02)
    await worker.stop(grace=0)
    assert "a decision: Refund order 77?" in await page(browser, "/runs")


async def test_queues_show_what_waits_and_workers_what_they_do(
    server: Server, browser: httpx.AsyncClient, store: Store
) -> None:
    for _ in range(3):
        await start(server)
    shown = await page(browser, "/queues")
    row = re.search(r"<tr data-href[^>]*>.*?default.*?</tr>", shown, re.DOTALL)
    assert row is not None
    assert re.findall(r'<td class="num[^"]*" data-label="Due">([^<]*)', row[0]) == ["3"]
    worker = Worker(app, store)
    await worker.start()
    assert f"of {worker.info.concurrency}</td>" in await page(browser, "/workers")
    await worker.stop(grace=0)


async def test_workers_show_their_builds_if_they_pin_workflows(
    browser: httpx.AsyncClient, store: Store
) -> None:
    """Fault: a build was a second handler of each workflow."""
    info = Worker(app, store).info
    await store.heartbeat(info, [], lease_seconds=30)
    assert ">build " not in await page(browser, "/workers")
    pinned = ("shop/buy@1", "shop/charge@0", "shop/buy@1+a81f")
    other = replace(info, worker_id="pinned", handlers=pinned)
    await store.heartbeat(other, [], lease_seconds=30)
    html = await page(browser, "/workers")
    assert re.findall(">build ([^<]*)", html) == ["a81f"]
    assert 'data-label="Handlers">shop/buy@1, shop/charge</td>' in html


async def test_workers_show_if_redis_reaches_them(browser: httpx.AsyncClient, store: Store) -> None:
    """Only if one of them uses it."""

    async def cells() -> list[str]:
        html = await page(browser, "/workers")
        return re.findall(r'<td data-label="Redis">([^<]*)', html)

    workers = [Worker(app, store) for _ in range(3)]
    for worker in workers:
        await store.heartbeat(worker.info, [], lease_seconds=30)
    assert await cells() == []
    for worker, hints in zip(workers[1:], (True, False), strict=True):
        await store.heartbeat(replace(worker.info, hints=hints), [], lease_seconds=30)
    assert sorted(await cells()) == ["away", "not used", "yes"]


async def test_pages_follow_each_other_by_cursor(
    server: Server, browser: httpx.AsyncClient
) -> None:
    for number in range(55):
        await start(server, number, key=f"order-{number}")
    first = await page(browser, "/runs")
    older = re.search(r'rel="next" href="([^"]+)"', first)
    assert older is not None
    second = await page(browser, older[1].replace("&amp;", "&"))
    shown = re.findall(r'id="r-([0-9a-f]{32})"', first + second)
    assert len(shown) == len(set(shown)) == 55
    assert 'rel="next"' not in second


async def test_the_page_of_a_run_says_why_and_has_its_actions(
    server: Server, browser: httpx.AsyncClient
) -> None:
    run = await start(server, {"n": 1}, key="order-7")
    why = await server.site.client.runs.get(run)
    assert why.state == "queued"
    html = await page(browser, f"/runs/{run}")
    assert "no live worker serves" in html
    assert "holdfast worker MODULE:APP" in html
    for tab in ("log", "data"):
        await page(browser, f"/runs/{run}?tab={tab}")
    assert "WorkflowStarted" in await page(browser, f"/runs/{run}?tab=log")
    for tab, empty in (("streams", "no stream"), ("lines", "--run-logs")):
        assert f"tab={tab}" not in html
        found = await page(browser, f"/runs/{run}?tab={tab}")
        assert empty in found
        assert f'data-connect="/runs/{run}?tab={tab}&amp;live=1"' in found
    await page(browser, f"/runs/{run}?tab=other", 404)
    await page(browser, "/runs/0198c0de-0000-7000-8000-000000000000", 404)
    await page(browser, "/runs/x", 404)
    whole = await browser.get(f"/runs/{run}/download/input")
    assert whole.json() == {"n": 1}
    assert whole.headers["content-disposition"].startswith("attachment")


async def test_a_run_that_is_traced_shows_its_trace(
    server: Server, browser: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = "ab" * 16
    run = await start(server, {"n": 1}, headers={"traceparent": f"00-{trace}-{'cd' * 8}-01"})
    other = await start(server, {"n": 2})
    html = await page(browser, f"/runs/{run}")
    assert trace in html
    assert "<span>trace" not in await page(browser, f"/runs/{other}")
    monkeypatch.setenv("HOLDFAST_TRACE_URL", "https://traces.test/trace/{trace_id}")
    assert f'href="https://traces.test/trace/{trace}"' in await page(browser, f"/runs/{run}")
    own = f"https://traces.test/trace/{trace_text(UUID(other), None)}"
    assert own in await page(browser, f"/runs/{other}")
    monkeypatch.setenv("HOLDFAST_TRACE_URL", "javascript:alert('{trace_id}')")
    assert "javascript:" not in await page(browser, f"/runs/{run}")


async def test_forms_change_a_run_and_an_old_page_is_told_so(
    server: Server, browser: httpx.AsyncClient
) -> None:
    run = await start(server)
    await send(browser, f"/runs/{run}/do/pause", reason="a look")
    assert "it was paused" in await page(browser, f"/runs/{run}")
    await send(browser, f"/runs/{run}/do/resume")
    await send(browser, f"/runs/{run}/do/signal", name="go", payload='{"a": 1}', id="once")
    again = await send(browser, f"/runs/{run}/do/signal", name="go", payload='{"a": 1}', id="once")
    assert "done=" in again.headers["location"]
    log = await server.site.client.runs.log(run)
    assert [each.event.type for each in log].count("SignalReceived") == 1
    wrong = await send(browser, f"/runs/{run}/do/signal", 422, name="go", payload="{a")
    assert "not JSON" in wrong.text
    await send(browser, f"/runs/{run}/do/terminate", reason="enough")
    assert "it was terminated" in await page(browser, f"/runs/{run}")
    late = await send(browser, f"/runs/{run}/do/cancel", 409)
    assert "has ended (terminated)" in late.text
    assert f'href="/runs/{run}">To the run</a>' in late.text
    retried = await send(browser, f"/runs/{run}/do/retry")
    assert run not in retried.headers["location"]


async def test_an_address_that_leads_nowhere_is_a_page(
    server: Server, browser: httpx.AsyncClient
) -> None:
    """For browsers; programs are answered in JSON as before."""
    reads = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    for path in ("/nothing", "/runs/", "/v1", "/runz/x", "/%2e%2e/etc", "/login/x"):
        answer = await browser.get(path, headers=reads)
        assert answer.status_code == 404, path
        assert answer.headers["content-type"].startswith("text/html"), path
        assert "No such page" in answer.text
        assert 'href="/"' in answer.text
        told = await browser.get(path)
        assert told.headers["content-type"] == "application/problem+json"
    assert (await browser.get("/v1/nothing", headers=reads)).status_code == 401


async def test_a_list_of_ids_that_are_none_is_refused(browser: httpx.AsyncClient) -> None:
    assert "ids are those of runs" in await page(browser, "/runs?ids=x", 400)


async def test_a_refusal_has_the_navigation_for_those_who_may_read(
    server: Server, browser: httpx.AsyncClient, store: Store
) -> None:
    reads = {"Accept": "text/html,*/*;q=0.8"}
    side = 'aria-label="Pages"'
    unknown = await page(browser, "/runs/x", 404)
    assert side in unknown
    assert 'href="/runs" aria-current="page"' in unknown
    nowhere = (await browser.get("/nothing", headers=reads)).text
    assert side in nowhere
    assert "aria-current" not in nowhere
    run = await start(server)
    await server.site.client.runs.terminate(UUID(run))
    assert side in (await send(browser, f"/runs/{run}/do/cancel", 409)).text
    browser.cookies.clear()
    stranger = await browser.get("/nothing", headers=reads)
    assert stranger.status_code == 404
    assert side not in stranger.text
    transport = httpx.ASGITransport(
        Server(store=store, auth=KeyAccess(KEY), hosts=[HOST], read_only=True)
    )
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as reader:
        await reader.get(f"/login?key={KEY}")
        refused = await send(reader, f"/runs/{run}/do/retry", 403)
        assert side in refused.text


async def test_a_fork_is_offered_from_steps_and_not_from_timers(
    server: Server, browser: httpx.AsyncClient, store: Store
) -> None:
    handle = await server.site.client.start(rest, "lamp")
    worker = Worker(app, store, WorkerOptions(queues=("default",)))
    await worker.start()
    try:
        await handle.result(timeout="60s")
    finally:
        await worker.stop()
    html = await page(browser, f"/runs/{handle.run_id}/fork")
    offered = re.findall(r"<option[^>]*>([^<]*)</option>", html)
    assert offered[1:] == ["pack"]


async def test_a_fork_takes_another_input_and_a_form_sent_twice_makes_one(
    server: Server, browser: httpx.AsyncClient
) -> None:
    run = await start(server, 7)
    html = await page(browser, f"/runs/{run}/fork?index=1")
    new = re.search(r'name="run_id" value="([^"]+)"', html)
    assert new is not None
    for _ in range(2):
        answer = await send(browser, f"/runs/{run}/fork", run_id=new[1], index="1", input="8")
        assert answer.headers["location"] == f"/runs/{new[1]}?done=fork"
    assert (await server.site.client.runs.get(new[1])).input == 8
    assert f'fork of <a class="mono" href="/runs/{run}">' in await page(browser, f"/runs/{new[1]}")
    assert "fork of" not in await page(browser, f"/runs/{run}")


async def test_another_input_keeps_the_start_alone_unless_a_place_is_named(
    server: Server, browser: httpx.AsyncClient, store: Store
) -> None:
    """Else the fork is stuck: it makes its calls with other arguments than the log has."""
    handle = await server.site.client.start(rest, "lamp")
    worker = Worker(app, store, WorkerOptions(queues=("default",)))
    await worker.start()
    try:
        await handle.result(timeout="60s")
        form = await page(browser, f"/runs/{handle.run_id}/fork")
        new = re.search(r'name="run_id" value="([^"]+)"', form)
        assert new is not None
        await send(browser, f"/runs/{handle.run_id}/fork", run_id=new[1], input='"chair"')
        fork = server.site.client.handle(UUID(new[1]))
        assert await fork.result(timeout="60s") == "parcel with chair"
    finally:
        await worker.stop()


def bakery(bad: bool = False) -> App:
    """Return an app whose code may raise at once."""
    made = App("bakery")

    @made.step(retry=Retry(attempts=1))
    async def knead(number: int) -> int:
        raise ValueError("no flour")

    @made.workflow
    async def bake(ctx: Context, number: int) -> None:
        if bad:
            raise KeyError("oven")
        try:
            await knead(number)
        except StepFailed:
            if number == 1:
                await ctx.wait_for_signal("go")
        raise RuntimeError("not baked")

    return made


@contextlib.asynccontextmanager
async def baking(store: Store, bad: bool = False) -> AsyncIterator[None]:
    worker = Worker(bakery(bad), store, WorkerOptions())
    await worker.start()
    try:
        yield
    finally:
        await worker.stop()


async def in_state(client: Client, run_id: UUID, state: str) -> None:
    async with asyncio.timeout(60):
        while (await client.runs.get(run_id)).state != state:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("by", ["page", "rest"])
async def test_the_failed_steps_of_a_run_are_retried(
    server: Server, browser: httpx.AsyncClient, store: Store, by: str
) -> None:
    """C20. The code handled the failure: a plain retry would repeat nothing."""
    client = server.site.client
    handle = await client.start("bakery/bake", 2)
    async with baking(store):
        await in_state(client, handle.run_id, "failed")
    if by == "page":
        html = await page(browser, f"/runs/{handle.run_id}")
        button = re.search(
            r'action="([^"]+/do/retry)"><input type="hidden" name="(failed_steps)" value="(yes)">'
            "<button[^>]*>Retry the failed steps<",
            html,
        )
        assert button is not None
        answer = await send(browser, button[1], **{button[2]: button[3]})
        new = answer.headers["location"].partition("?")[0].rpartition("/")[2]
    else:
        answer = await browser.post(
            f"/v1/runs/{handle.run_id}/retry",
            json={"failed_steps": True},
            headers=HERE | {"Authorization": f"Bearer {KEY}"},
        )
        assert answer.status_code == 201, answer.text
        new = answer.json()["run_id"]
    kept = [each.event.type for each in await client.runs.log(UUID(new))]
    assert "StepFailed" not in kept  # a plain retry keeps it
    plain = [each.event.type for each in await client.runs.log(handle.run_id)]
    assert "StepFailed" in plain


async def test_a_run_whose_code_raises_is_stuck_with_its_traceback(
    server: Server, browser: httpx.AsyncClient, store: Store
) -> None:
    """A4, over REST and on its page."""
    client = server.site.client
    handle = await client.start("bakery/bake", 1)
    async with baking(store):
        await in_state(client, handle.run_id, "waiting")
    await handle.signal("go")
    async with baking(store, bad=True):
        await in_state(client, handle.run_id, "stuck")
    key = {"Authorization": f"Bearer {KEY}"}
    run = (await browser.get(f"/v1/runs/{handle.run_id}", headers=key)).json()
    assert run["state"] == "stuck"
    assert "KeyError" in run["wait"]["stuck"]
    why = (await browser.get(f"/v1/runs/{handle.run_id}/why", headers=key)).json()
    assert "KeyError" in f"{why['because']}{why['details']}"
    assert 'raise KeyError("oven")' in why["traceback"]
    assert "raise KeyError(" in unescape(await page(browser, f"/runs/{handle.run_id}"))


async def test_a_run_that_failed_on_its_input_offers_a_fork_and_no_retry(
    server: Server, browser: httpx.AsyncClient, store: Store
) -> None:
    async with Client(store=store) as stranger:  # it knows no app, so it checks no input
        misfit = await stranger.start("desk/rest", {"not": "a text"})
    failed = await server.site.client.start(render, "Fraktur")
    worker = Worker(app, store, WorkerOptions(queues=("default",)))
    await worker.start()
    try:
        for each in (misfit, failed):
            await server.site.client.runs.wait(each.run_id, timeout="60s")
    finally:
        await worker.stop()
    html = await page(browser, f"/runs/{misfit.run_id}")
    assert html.count("Fork with another input") == 1
    assert f"/runs/{misfit.run_id}/do/retry" not in html
    html = await page(browser, f"/runs/{failed.run_id}")
    assert html.index("/do/retry") < html.index("Fork with another input")


async def test_names_and_payloads_are_text(server: Server, browser: httpx.AsyncClient) -> None:
    run = await start(server, {HOSTILE: HOSTILE}, key=HOSTILE, tags=[HOSTILE])
    await server.site.client.runs.pause(run, HOSTILE)
    handle = server.site.client.handle(run)
    await handle.signal("go", {HOSTILE: HOSTILE})
    paths = ["/", "/runs", f"/runs/{run}", f"/runs/{run}/fork"]
    paths += [f"/runs/{run}?tab={tab}" for tab in ("log", "data", "children")]
    for path in paths:
        html = await page(browser, path)
        assert "<script>alert" not in html, path
        assert "'x'" not in html, path
        assert "style=" not in html, path
        assert not re.search(r"<script(?! src=)", html), path


async def test_each_row_of_the_table_needs_its_level(store: Store) -> None:
    given: list[Principal | None] = [None]
    async with Server(store=store, auth=lambda _: given[0], app=app, hosts=[HOST]) as server:
        run = await start(server)
        transport = httpx.ASGITransport(server)
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as client:
            for row in TABLE:
                path = re.sub(r"\{run[^}]*\}", run, row.path)
                path = re.sub(r"\{[^}]*\}", "input", path)
                for url in (path, f"{path}?live=1"):
                    given[0] = None
                    answer = await client.request(row.method, url, headers=HERE)
                    assert answer.status_code == 401, url
                if row.level != "read":
                    given[0] = Principal("ann", "read" if row.level == "write" else "write")
                    answer = await client.request(row.method, path, headers=HERE)
                    assert answer.status_code == 403, path
                if row.method == "POST":
                    given[0] = Principal("ann", "admin")
                    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}, {}):
                        answer = await client.post(path, headers=headers)
                        assert answer.status_code == 403, path
            log = await server.site.client.runs.log(run)
            assert [each.event.type for each in log] == ["WorkflowStarted"]


async def test_a_cookie_opens_pages_and_nothing_else(
    server: Server, browser: httpx.AsyncClient
) -> None:
    cookie = browser.cookies["holdfast"]
    assert (await browser.get("/v1/runs")).status_code == 401
    transport = httpx.ASGITransport(server)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as other:
        answer = await other.get("/runs?state=failed")
        assert answer.headers["location"] == "/login?next=%2Fruns%3Fstate%3Dfailed"
        name, expiry, number, proof = cookie.split(".")
        forged = [
            f"{name}.{int(expiry) + 1}.{number}.{proof}",
            f"{name}.{expiry}.{number}.{proof[:-1]}",
            "a.b.c.d",
            "x",
            f"{name}.{'9' * 40}.{number}.{proof}",
        ]
        for text in forged:
            answer = await other.get("/runs", headers={"Cookie": f"holdfast={text}"})
            assert answer.status_code == 303, text
        assert (await other.get("/login?key=wrong")).status_code == 401
        for outside in ("//evil.test", "https://evil.test", "/\\evil.test"):
            answer = await other.get("/login", params={"key": KEY, "next": outside})
            assert answer.headers["location"] == "/", outside
    server.site.access = KeyAccess("another key")
    assert (await browser.get("/runs")).status_code == 303
    form = await browser.post("/queues/pause", data={"name": "q"}, headers=HERE)
    assert form.status_code == 401
    assert 'href="/login" target="_blank"' in form.text  # this tab keeps what was typed


async def test_a_stream_sends_nothing_after_its_token_was_revoked(
    browser: httpx.AsyncClient, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the parts of the page that were ready, nor a part that changes later."""
    run = await start(server, key="order-7")
    monkeypatch.setattr(server.site.access, "still", lambda _: False)
    answer = await browser.get(f"/runs/{run}?live=1")
    assert "event: bye" in answer.text
    assert "hx-partial" not in answer.text


async def test_a_stream_sends_the_parts_that_changed(
    server: Server, browser: httpx.AsyncClient
) -> None:
    run = await start(server, key="order-7")
    server.site.stream_seconds = 0.2
    answer = await browser.get(f"/runs/{run}?live=1")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "event: bye" in answer.text
    assert 'hx-target="#why"' in answer.text
    assert (await browser.get("/runs/x?live=1")).status_code == 404


async def test_a_run_is_started_from_the_form_of_its_input(
    server: Server, browser: httpx.AsyncClient
) -> None:
    html = await page(browser, "/workflow?name=desk/ship")
    for part in ('name="f.number"', 'name="f.items"', "<option value=", "large", "its own"):
        assert part in html
    new = re.search(r'name="run_id" value="([^"]+)"', html)
    assert new is not None
    fields = {"name": "desk/ship", "run_id": new[1], "f.number": "7", "f.items": '["lamp"]'}
    fields |= {"f.size": '"large"', "f.express": "true", "f.note": 'a "note" & <b>'}
    for _ in range(2):
        answer = await send(browser, "/workflows/start", **fields)
        assert answer.headers["location"] == f"/runs/{new[1]}?done=start"
    run = await server.site.client.runs.get(new[1])
    assert run.input == Order(7, ["lamp"], "large", True, 'a "note" & <b>')
    wrong = await send(browser, "/workflows/start", 422, **(fields | {"f.number": "seven"}))
    assert "No run was started: number is not a number" in wrong.text
    assert new[1] in wrong.text
    for kept in ('value="seven"', "[&#34;lamp&#34;]", 'value="&#34;large&#34;" selected'):
        assert kept in wrong.text
    late = await send(browser, "/workflows/start", 422, **(fields | {"delay": "soon"}))
    assert "not a duration: &#39;soon&#39;" in late.text
    assert 'value="soon"' in late.text
    missing = await send(browser, "/workflows/start", 422, **(fields | {"f.number": ""}))
    assert "number is required" in missing.text
    plain = await page(browser, "/workflow?name=desk/checkout")
    assert "Input, as JSON" in plain
    bad = {"name": "desk/checkout", "key": "order-6", "input": "{oops"}
    again = (await send(browser, "/workflows/start", 422, **bad)).text
    assert "{oops" in again
    assert "order-6" in again
    await send(browser, "/workflows/start", name="desk/checkout", input="[1]", key="order-7")
    assert (await server.site.client.runs.get(("checkout", "order-7"))).input == [1]
    await send(browser, "/workflows/start", 404, name="desk/nobody", input="1", key="x")


async def test_queues_and_workflows_are_paused_and_resumed(
    server: Server, browser: httpx.AsyncClient
) -> None:
    await send(browser, "/queues/pause", name="mail", reason=HOSTILE)
    html = await page(browser, "/queues")
    assert "paused" in html
    assert "no live worker serves it" in html  # as after a slip of the pen
    assert '<option value="mail">' in html
    assert "<script>alert" not in html
    assert "workers begin nothing" in await page(browser, "/doctor")
    assert "workers begin nothing" in await page(browser, "/")
    await send(browser, "/queues/resume", name="mail")
    assert await server.site.client.queues.pauses() == []
    await send(browser, "/workflows/pause", name="desk/ship")
    assert "paused" in await page(browser, "/workflows")
    await send(browser, "/workflows/resume", name="desk/ship")
    assert await server.site.client.workflows.pauses() == []
    assert "None is signed on" in await page(browser, "/workers")
    await send(browser, "/queues/pause", 400, name=" ")


async def test_a_schedule_is_fired_paused_and_backfilled(
    server: Server, browser: httpx.AsyncClient
) -> None:
    client = server.site.client
    await client.schedules.create("nightly", checkout, "0 3 * * *", input={"a": HOSTILE})
    name, url = "desk/nightly", "/schedule?name=desk/nightly"
    assert name in await page(browser, "/schedules")
    html = await page(browser, url)
    assert "<script>alert" not in html
    at = re.search(r'name="at" value="([^"]+)"', html)
    asked = re.search(r'name="id" value="([^"]+)"', html)
    assert at is not None
    assert asked is not None
    for _ in range(2):
        await send(browser, "/schedules/do/trigger", name=name, at=at[1])
    assert len((await client.runs.list()).runs) == 1
    shown = await page(browser, url)
    assert ('<table class="cards">' in shown, "<table>" in shown) == (True, False)  # narrow windows
    await send(browser, "/schedules/do/pause", name=name, reason="disks")
    assert "disks" in await page(browser, "/schedules")
    await send(browser, "/schedules/do/resume", name=name)
    backfill = {"name": name, "id": asked[1], "first": "2020-01-01T00:00"}
    await send(browser, "/schedules/do/backfill", **backfill, last="2020-01-03T00:00")
    assert (await client.schedules.get(name)).backfills == 1
    await send(browser, "/schedules/do/cancel", name=name)
    assert (await client.schedules.get(name)).backfills == 0
    await send(browser, "/schedules/do/backfill", 422, **backfill, last="x")
    await send(browser, "/schedules/do/other", 404, name=name)
    await page(browser, "/schedule?name=desk/nobody", 404)


async def test_schedules_that_send_show_where_to(
    server: Server, browser: httpx.AsyncClient
) -> None:
    client = server.site.client
    await client.schedules.create("clock", topic="clock.hour", cron="@hourly")
    assert "topic clock.hour" in await page(browser, "/schedules")
    await send(browser, "/schedules/do/trigger", name="desk/clock", at="2026-01-01T00:00")
    html = await page(browser, "/schedule?name=desk/clock")
    assert "publishes to topic clock.hour" in html
    assert "reached 0 targets" in html
    assert "Overlap" not in html


async def test_many_runs_are_counted_then_changed(
    server: Server, browser: httpx.AsyncClient
) -> None:
    for number in range(5):
        await start(server, number)
    other = await start(server, 9, queue="other")
    url = "/bulk?do=cancel&queue=default"
    html = await page(browser, url)
    assert "<b>5 runs</b> would be changed" in html
    assert not (await server.site.client.runs.list(states="cancelled")).runs
    form = {"do": "cancel", "count": "5", "job": "one", "reason": "enough"}
    refused = await send(browser, "/bulk?queue=default", 422, **form, typed="4")
    assert "type 5 to confirm" in refused.text
    assert "Go back in the browser to correct it" in refused.text
    for _ in range(2):
        answer = await send(browser, "/bulk?queue=default", **form, typed="5")
    async with asyncio.timeout(30):
        while "completed" not in (html := await page(browser, answer.headers["location"])):
            await asyncio.sleep(0.02)
    assert "<b>5</b> changed" in html
    assert (await server.site.client.runs.get(other)).state == "queued"
    await page(browser, "/bulk?do=other", 400)
    await page(browser, "/bulk/nobody", 404)


async def test_no_form_reschedules_runs(server: Server, browser: httpx.AsyncClient) -> None:
    """It has none of the fields: what it asked for was taken for `terminate`."""
    left = await start(server)
    await page(browser, "/bulk?do=reschedule&queue=default", 400)
    form = {"do": "reschedule", "count": "1", "typed": "1", "job": "moved"}
    await send(browser, "/bulk?queue=default", 400, **form)
    assert (await server.site.client.runs.get(left)).state == "queued"


async def test_chosen_runs_are_counted_then_changed(
    server: Server, browser: httpx.AsyncClient
) -> None:
    """The form of a list names runs: these are changed, whatever else there is."""
    runs = [await start(server, number) for number in range(4)]
    await server.site.client.runs.terminate(runs[3])
    html = await page(browser, "/runs")
    boxes = re.findall(r'<input type="checkbox"[^>]* value="([0-9a-f,]+)"', html)
    assert boxes[0].split(",") == boxes[1:]  # without a script, one box means all of the page
    assert {UUID(each) for each in boxes[1:]} == {UUID(each) for each in runs}
    assert 'form="chosen"' in html
    query = urlencode([("do", "cancel"), ("run", boxes[4]), ("run", boxes[1]), ("run", boxes[4])])
    html = await page(browser, f"/bulk?{query}")
    assert "<b>1 run</b> would be changed, of 2 that were chosen" in html
    assert "the chosen runs" in html
    form = {"do": "cancel", "count": "1", "job": "chosen", "typed": "1"}
    answer = await send(browser, f"/bulk?{query}", **form)
    async with asyncio.timeout(30):
        while "completed" not in (html := await page(browser, answer.headers["location"])):
            await asyncio.sleep(0.02)
    assert "<b>1</b> changed, 1 unchanged, 2 looked at" in html
    assert "Cancel the chosen runs" in html
    states = [(await server.site.client.runs.get(each)).state for each in runs]
    assert states == ["cancelled", "queued", "queued", "terminated"]
    lost = answer.headers["location"].replace("/bulk/chosen", "/bulk/other")
    assert boxes[4] in await page(browser, lost)  # where a server that has gone left off


@pytest.mark.parametrize("run", ["", ",", "x", "0", f"{UUID(int=1)},x", ",".join(["%032x"] * 201)])
async def test_a_form_that_chooses_no_runs_is_refused(
    server: Server, browser: httpx.AsyncClient, run: str
) -> None:
    """It must not mean all runs."""
    left = await start(server)
    text = run % tuple(range(201)) if "%" in run else run
    for query in (urlencode({"do": "cancel", "run": text}), urlencode({"run": text})):
        await page(browser, f"/bulk?do=cancel&{query}", 400)
        form = {"do": "cancel", "count": "1", "job": "none", "typed": "1"}
        await send(browser, f"/bulk?{query}", 400, **form)
    assert (await server.site.client.runs.get(left)).state == "queued"


async def test_a_form_that_chose_nothing_is_refused(
    server: Server, browser: httpx.AsyncClient
) -> None:
    """A browser sends no field for boxes that are empty."""
    await start(server)
    html = await page(browser, "/runs")
    form = html[html.index('<form id="chosen"') :]
    hidden = dict(
        re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form.split("</form>")[0])
    )
    assert hidden
    await page(browser, f"/bulk?{urlencode({'do': 'cancel', **hidden})}", 400)


async def test_an_approval_is_decided_in_the_inbox(
    server: Server, browser: httpx.AsyncClient, store: Store
) -> None:
    run_id = (await server.site.client.start(refund, Order(7))).run_id
    worker = Worker(app, store, WorkerOptions(queues=("default",)))
    await worker.start()
    try:
        async with asyncio.timeout(60):
            while "Refund order 7?" not in (html := await page(browser, "/approvals")):
                await asyncio.sleep(0.02)
            hidden = dict(re.findall(r'type="hidden" name="(key|id|back)" value="([^"]*)"', html))
            url = f"/runs/{run_id}/do/decide"
            form = {**hidden, "approved": "yes", "f.reason": '"late"', "f.urgent": "true"}
            missing = await send(browser, url, 422, **form)
            assert "amount" in missing.text
            answer = await send(browser, url, **form, **{"f.amount": "12.5"})
            assert answer.headers["location"] == "/approvals?done=decide"
            ended = await server.site.client.runs.wait(run_id)
            assert ended.output == "Terms(amount=12.5, reason='late', urgent=True)"
            late = await send(browser, url, 409, **(form | {"id": "another", "approved": "no"}))
            assert "key" in late.text
    finally:
        await worker.stop()

    assert "12.5" in await page(browser, f"/runs/{run_id}")
    workers = await page(browser, "/workflows")
    assert "desk/refund" in workers


async def test_queues_and_topics_are_shown_and_dead_deliveries_delivered_again(
    server: Server, browser: httpx.AsyncClient
) -> None:
    client = server.site.client
    assert "There is no message queue" in await page(browser, "/messages")
    await client.queues.create("mail", fifo=True)
    await client.topics.subscribe("orders.*", queue="mail")
    html = await page(browser, "/messages")
    assert "FIFO" in html
    assert "goes to queue mail" in html
    assert "/message-queue?name=mail" in html
    await client.queues.update("mail", max_receives=2)
    await client.queues.send("mail", HOSTILE, group="ann")
    for error in (HOSTILE, "no such mailbox"):
        [message] = await client.queues.receive("mail")
        await client.queues.nack(message, error=error)
    for path in ("/", "/messages"):
        assert "dead letter" in await page(browser, path)
    html = await page(browser, "/message-queue?name=mail")
    for part in (
        "no such mailbox",
        "<summary>2 errors</summary>",
        "mail.dead",
        "After 2 receives it moves",
        f'value="{message.id}"',
        "s-warn",  # as in the list of queues
    ):
        assert part in html
    assert HOSTILE not in html
    await client.limits.set(Limit(3, key="input.of"), queue="mail")
    html = await page(browser, "/message-queue?name=mail")
    assert "runs 3 at once for each input.of: 0 in flight." in html
    assert "dead letters of" in await page(browser, "/message-queue?name=mail.dead")
    await page(browser, "/message-queue?name=nobody", 404)
    await send(browser, "/message-queue/redrive", 400, name="mail", id="x")
    back = await send(browser, "/message-queue/redrive", name="mail", id=str(message.id))
    html = await page(browser, back.headers["location"])
    assert "moved back" in html
    assert "1 due" in html
    assert (await client.queues.metrics("mail"))[0].dead == 0
    await send(browser, "/message-queue/redrive", name="mail", id="all")
    await send(browser, "/messages/redrive", id="all")
    await send(browser, "/messages/discard", id="7")
    await send(browser, "/messages/discard", 400, id="x")


async def test_a_drawing_names_trigger_rules_as_the_command_line_does(store: Store) -> None:
    steps = [StepShape(slug="a")]
    steps += [
        StepShape(slug=rule, deps=("a",), trigger_rule=rule) for rule in ("all_done", "one_failed")
    ]
    steps += [StepShape(slug="always", trigger_rule="always")]
    await store.ensure_flow(FlowShape(name="desk/rules", steps=tuple(steps)), "hash")
    run = NewRun(run_id=uuid4(), name="desk/rules", input="1")
    await store.start_flows([run])
    drawn = await draw_flow(store, (await store.get_runs([run.run_id]))[run.run_id])
    assert drawn is not None
    below = {node.name: node.below for node in drawn.nodes}
    assert below.pop("a") == "queued"
    assert below == {rule: f"({rule})" for rule in ("all_done", "one_failed", "always")}


def test_a_line_over_several_layers_passes_beside_the_steps_between() -> None:
    steps = [StepShape(slug="a"), StepShape(slug="b", deps=("a",))]
    steps += [StepShape(slug="c", deps=("b",)), StepShape(slug="d", deps=("a", "c"))]
    layers, chains = layers_of(FlowShape(name="desk/f", steps=tuple(steps)))
    assert [len(layer) for layer in layers] == [1, 2, 2, 1]
    long = next(chain for chain in chains if chain[0] == "a" and chain[-1] == "d")
    assert len(long) == 4
    assert not {"b", "c"} & set(long)


async def test_a_flow_of_a_thousand_steps_is_a_drawing_and_a_list_that_can_be_filtered(
    server: Server, browser: httpx.AsyncClient, store: Store
) -> None:
    """Each step is a small box; the list shows what failed alone, and a hundred rows at once."""
    large = App("large")
    wide = large.flow("wide", input=int)

    @wide.step
    async def first(run: int) -> int:
        return run

    def make(number: int) -> None:
        async def act(first: int) -> int:
            if number % 100 == 7:
                raise ValueError("it is broken")
            return number

        wide.step(name=f"step{number}", attempts=1, on_exhausted="skip")(act)

    for number in range(1_000):
        make(number)

    async with Client(store=store, app=large) as client:
        worker = Worker(large, store)
        await worker.start()
        run_id = (await client.start(wide, 1)).run_id
        await client.runs.wait(run_id)
        await worker.stop(grace=0)
    html = await page(browser, f"/runs/{run_id}")
    assert html.count('class="box small"') == 1_001
    assert "<tbody>" not in html
    assert html.count('class="strip"') <= 100
    assert len(html) < 600_000
    failed = await page(browser, f"/runs/{run_id}?only=failed")
    assert html.count("only failed 10<") == failed.count("only failed 10<") == 1
    assert failed.count('class="strip"') == 10
    assert "data-window" not in failed
    await page(browser, f"/runs/{run_id}?only=other", 400)


async def test_a_mounted_server_makes_its_urls_below_its_place(store: Store) -> None:
    """Also behind a proxy that strips the prefix, and for one that may only read."""
    level: list[Level] = ["read"]
    served = Server(store=store, auth=lambda _: Principal("ann", level[0]), app=app, hosts=[])
    async with served:
        run = await start(served, key="order-7")
        transport = httpx.ASGITransport(Starlette(routes=[Mount("/ops/holdfast", served)]))
        async with httpx.AsyncClient(transport=transport, base_url="http://any.test") as client:
            for path in ("/", "/runs", f"/runs/{run}", "/workflow?name=desk/ship"):
                html = await page(client, f"/ops/holdfast{path}")
                urls = re.findall(r'(?:href|src|action|connect)="(/[^"]*)"', html)
                assert len(urls) > 10
                assert [each for each in urls if not each.startswith("/ops/holdfast/")] == [], path
                assert 'method="post"' not in html, path
            style = re.search(r'href="([^"]+\.css)"', html)
            assert style is not None
            found = await client.get(style[1])
            assert found.headers["cache-control"] == "public, max-age=31536000, immutable"
            level[0] = "write"
            html = await page(client, f"/ops/holdfast/runs/{run}")
            assert "/do/cancel" in html
            assert "/do/terminate" not in html
            answer = await send(client, f"/ops/holdfast/runs/{run}/do/pause")
            assert answer.headers["location"] == f"/ops/holdfast/runs/{run}?done=pause"
            wrong = await client.get(f"/ops/holdfast/runs/{run}/do/pause")
            assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
            log = await served.site.client.runs.log(run)
            assert "Paused" in log[-1].event.type


async def test_a_prefix_of_other_letters_is_written_as_browsers_send_it(store: Store) -> None:
    """A browser sends a cookie if the path of the request begins with the cookie's, as text."""
    served = Server(store=store, auth=KeyAccess(KEY), app=app, hosts=["any.test"])
    transport = httpx.ASGITransport(Starlette(routes=[Mount("/my öps", served)]))
    async with served, httpx.AsyncClient(transport=transport, base_url="http://any.test") as client:
        answer = await client.get(f"/my öps/login?key={KEY}")
        assert "Path=/my%20%C3%B6ps;" in answer.headers["set-cookie"]
        headers = {"Authorization": f"Bearer {KEY}", **HERE}
        path = "/my öps/v1/workflows/checkout/runs"
        made = await client.post(path, json={"input": 7}, headers=headers)
        assert made.status_code == 201
        assert made.headers["location"].startswith("/my%20%C3%B6ps/v1/runs/")


async def test_the_tags_of_a_run_lead_to_the_runs_that_have_them(
    server: Server, browser: httpx.AsyncClient
) -> None:
    tags = ["vip", "big order", '"', "a:b", "tag:x"]
    run = await start(server, tags=tags)
    html = await page(browser, f"/runs/{run}")
    links = [unescape(each) for each in re.findall(r'href="([^"]*)">#', html)]
    assert len(links) == len(tags)
    for link in links:
        assert str(run) in await page(browser, link), link


async def test_the_attributes_of_a_run_lead_to_the_runs_that_have_them(
    server: Server, browser: httpx.AsyncClient
) -> None:
    """A search takes them as well, beside other words."""
    texts = ["acme", "big corp", '"', 'x" y"', "a=b", "7", "back\\slash"]
    values = {f"a{place}": text for place, text in enumerate(texts)}
    run, other = await start(server, attributes=values), await start(server, attributes={"a0": 1})
    html = await page(browser, f"/runs/{run}")
    links = [unescape(each) for each in re.findall(r'href="([^"]*)">a\d=', html)]
    assert len(links) == len(texts)
    for link in links:
        found = await page(browser, link)
        assert str(run) in found, link
        assert str(other) not in found, link
    assert str(other) in await page(browser, "/runs?q=a0=1+queued")
    assert str(run) not in await page(browser, "/runs?q=a0=acme+failed")


async def test_the_stream_of_a_run_ends_when_the_run_is_gone(
    server: Server, browser: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await start(server)
    server.site.stream_seconds = 60.0

    async def gone(run: UUID, workflow: object = None) -> None:
        raise RunNotFound(run)

    async with asyncio.timeout(50):
        following = asyncio.create_task(browser.get(f"/runs/{run}?live=1"))
        while not server.site.streams.count:
            await asyncio.sleep(0.02)
        monkeypatch.setattr(server.site.reader.runs, "get", gone)
        answer = await following
    assert answer.text.endswith("event: gone\ndata: \n\n")


async def test_the_overview_shows_alerts_and_what_they_see(
    browser: httpx.AsyncClient, store: Store
) -> None:
    assert "Alerts" not in await page(browser, "/")
    served = AlertRule(
        name=HOSTILE[:40], kind="backlog", subject="mail", threshold=300, topic="ops"
    )
    nobody = AlertRule(name="nobody", kind="no_worker", subject="mail", threshold=1, topic="ops")
    await store.declare_alerts("shop", [served, nobody])
    assert "no worker has looked yet" in await page(browser, "/")
    await store.look_at_alerts()
    shown = await page(browser, "/")
    assert "no live worker serves queue mail" in shown
    assert "nobody (shop): began" in shown  # among what needs a person
    assert "a task of queue mail waits for 5 m" in shown
    assert "<script>alert" not in shown


@pytest.mark.parametrize("name", ["parent", "tag", "where", "key", "build"])
async def test_each_link_and_form_of_a_list_keeps_each_filter(
    server: Server, browser: httpx.AsyncClient, name: str
) -> None:
    """Fault: a change of all children of a run, as their list offers it, meant all runs."""
    run, other = await start(server), await start(server)
    value = {"parent": run, "where": "customer=7"}.get(name, "a81f")
    given = urlencode({name: value})
    html = await page(browser, f"/runs?{given}")
    assert html.count(f'<input type="hidden" name="{name}" value="{value}">') == 2
    links = re.findall(r'href="(/runs\?[^"]*)"', html)
    assert len([each for each in links if given in each]) >= 11  # the states
    assert "No run fits" in html
    assert other not in html
    for asked in (f"/bulk?do=cancel&{given}", f"/bulk?do=cancel&{given}&state=queued"):
        assert "<dt>filter</dt>" not in await page(browser, asked)
    form = {"do": "cancel", "count": "0", "typed": "0", "job": "kept"}
    job = await send(browser, f"/bulk?{given}", **form)
    assert given in await page(browser, job.headers["location"])


async def test_an_empty_list_tells_of_the_runs_that_come(
    server: Server, browser: httpx.AsyncClient
) -> None:
    """It had no stream: who waited for stuck or failed runs was never told of one."""
    html = await page(browser, "/runs?state=queued")
    [stream] = re.findall(r'data-connect="([^"]+)"', html)
    await start(server)
    server.site.stream_seconds = 0.2
    told = (await browser.get(stream.replace("&amp;", "&"))).text
    assert "1 new run" in told
    assert "No run fits" in told  # no row moves by itself


async def test_runs_are_filtered_by_their_build(
    server: Server, browser: httpx.AsyncClient, store: Store
) -> None:
    """By the search, and by the link on the page of a run; forms and pages keep it."""
    unpinned = await start(server)
    await store.declare_build("desk", "a81f", ["desk/checkout@1"])
    pinned = await start(server)
    assert '/runs?build=a81f">build a81f</a>' in await page(browser, f"/runs/{pinned}")
    for query in ("build=a81f", "q=build:a81f"):
        html = await page(browser, f"/runs?{query}")
        assert pinned in html
        assert unpinned not in html
    html = await page(browser, "/runs?build=a81f&state=queued")
    assert 'aria-label="Not only build a81f"' in html
    assert html.count('<input type="hidden" name="build" value="a81f">') == 2
    assert "/runs?state=failed&amp;build=a81f" in html
    assert pinned not in await page(browser, "/runs?build=b72c")
    assert "is not a name for a build" in await page(browser, "/runs?build=b+1")
