"""POSTs to the URLs of runs: no token but the one in the URL, and who may see that."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Iterator

import httpx
import pytest

from holdfast.server import Server
from holdfast.server.access import AskedAccess, KeyAccess, Principal
from holdfast.store.port import Store
from tests.server.shop import HOST, KEY, Api, app, hooks
from tests.server.test_operations import start, until

pytestmark = pytest.mark.usefixtures("worker")


@pytest.fixture(autouse=True)
def _hooks() -> Iterator[None]:
    hooks.clear()
    yield
    hooks.clear()


@pytest.fixture
def outside(server: Server) -> httpx.AsyncClient:
    """A payment service: it has no key of the server."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(server), base_url=f"http://{HOST}")


async def given() -> str:
    """Return the path of the URL that a run has given away."""

    async def look() -> str | None:
        return hooks[0] if hooks else None

    return httpx.URL(await until(look)).path


async def ended(api: Api, run_id: str) -> object:
    """Wait for the end of a run, and return its output."""
    run = await api.ask("GET", f"/v1/runs/{run_id}?wait=30")
    assert run["status"] == "completed", run
    return run["output"]


async def test_a_post_needs_no_token_and_counts_once(api: Api, outside: httpx.AsyncClient) -> None:
    run_id = await start(api, "paid", None)
    path = await given()
    first = await outside.post(path, json={"amount": 7})
    assert (first.status_code, first.json()) == (200, {"changed": True, "detail": "received"})
    again = await outside.post(path, json={"amount": 8})
    assert (again.status_code, again.json()) == (
        200,
        {"changed": False, "detail": "already received"},
    )
    assert await ended(api, run_id) == {"amount": 7}
    assert (await outside.post(path, json={})).json()["detail"] == "already received"


async def test_posts_at_once_are_one(api: Api, outside: httpx.AsyncClient) -> None:
    run_id = await start(api, "paid", None)
    path = await given()
    answers = await asyncio.gather(*(outside.post(path, json=number) for number in range(8)))
    assert {answer.status_code for answer in answers} == {200}
    changed = [n for n, answer in enumerate(answers) if answer.json()["changed"]]
    assert len(changed) == 1
    assert await ended(api, run_id) == changed[0]


async def test_what_cannot_be_taken_is_told(api: Api, outside: httpx.AsyncClient) -> None:
    run_id = await start(api, "paid", None)
    path = await given()
    assert (await outside.get(path)).status_code == 405
    assert (await outside.post(path[:-1] + "~", json=1)).status_code == 400
    other = path[:-4] + ("AAAA" if not path.endswith("AAAA") else "BBBB")
    assert (await outside.post(other, json=1)).status_code == 404
    assert (await outside.post(path, content=b"{")).status_code == 422
    assert (await outside.post(path, content=b"0" * (1024 * 1024 + 1))).status_code == 413
    assert (await outside.post(path, json=1, headers={"content-encoding": "gzip"})).status_code == (
        415
    )
    await api.ask("DELETE", f"/v1/runs/{run_id}")

    async def gone() -> bool:
        return (await api.ask("GET", f"/v1/runs/{run_id}"))["status"] == "cancelled"

    await until(gone)
    late = await outside.post(path, json=1)
    assert (late.status_code, late.json()["type"]) == (410, "urn:holdfast:problem:webhook-closed")


async def test_a_form_is_taken(api: Api, outside: httpx.AsyncClient) -> None:
    run_id = await start(api, "paid", None)
    await outside.post(await given(), data={"From": "+491", "Body": "yes"})
    assert await ended(api, run_id) == {"From": "+491", "Body": "yes"}


async def test_a_signature_is_checked(
    api: Api, outside: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a POST that was taken: the answer tells others nothing."""
    run_id = await start(api, "paid", "github")
    path, body = await given(), b'{"amount":7}'
    right = hmac.new(b"a-secret-of-tests", body, hashlib.sha256).hexdigest()
    signed = {"X-Hub-Signature-256": f"sha256={right}", "content-type": "application/json"}
    missing = await outside.post(path, content=body, headers=signed)
    assert (missing.status_code, "SHOP_HOOKS" in missing.text) == (503, False)
    assert missing.headers["retry-after"] == "1"
    monkeypatch.setenv("SHOP_HOOKS", "a-secret-of-tests")
    assert (await outside.post(path, content=body)).status_code == 403
    assert (await outside.post(path, content=body + b" ", headers=signed)).status_code == 403
    assert (await outside.post(path, content=body, headers=signed)).json()["changed"]
    assert (await outside.post(path, content=body)).status_code == 403
    assert not (await outside.post(path, content=body, headers=signed)).json()["changed"]
    assert await ended(api, run_id) == {"amount": 7}


async def test_who_may_read_does_not_see_the_url(
    store: Store, api: Api, outside: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """In no answer of the API, on no page, and not in the server's log."""
    caplog.set_level(logging.INFO)
    run_id = await start(api, "paid", None)
    path = await given()
    token = path.rpartition("/")[2]
    run = f"/v1/runs/{run_id}"

    async def opened() -> bool:
        events = (await api.ask("GET", f"{run}/events"))["events"]
        return any(each["type"] == "WebhookOpened" for each in events)

    await until(opened)
    events = (await api.ask("GET", f"{run}/events"))["events"]
    [details] = [each["details"] for each in events if each["type"] == "WebhookOpened"]
    assert (details["url"], details["digest"]) == (
        "(hidden)",
        hashlib.sha256(token.encode()).hexdigest(),
    )
    reads = ["", "/events", "/events?clip=200", "/steps", "/timeline", "/why"]
    texts = [(await api.http.get(f"{run}{each}")).text for each in reads]
    texts.append((await api.http.get("/v1/events")).text)
    why = await api.ask("GET", f"{run}/why")
    assert why["because"] == "it waits for 1 POST"
    assert any(each.startswith("webhook paid: nothing was posted") for each in why["details"])
    reader = Server(
        store=store, auth=AskedAccess(lambda _: Principal("ann", "read")), app=app, hosts=[HOST]
    )
    async with (
        reader,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(reader), base_url=f"http://{HOST}"
        ) as pages,
    ):
        tabs = [f"/runs/{run_id}?tab={tab}" for tab in ("timeline", "log", "data")]
        downloads = [f"/runs/{run_id}/download/{each['idx']}" for each in events]
        for each in [*tabs, *downloads]:
            answer = await pages.get(each)
            assert answer.status_code in (200, 404), each
            texts.append(answer.text)
    await outside.post(path, content=b"{")
    await outside.post(path, json=1)
    await ended(api, run_id)
    async with api.http.stream("GET", f"{run}/attach") as stream:
        texts.append((await stream.aread()).decode())
    assert "WebhookOpened" in texts[-1]
    assert not [text for text in texts if token in text]
    lines = [each.getMessage() for each in caplog.records if each.name.startswith("holdfast")]
    assert "receive_webhook by anyone: done" in lines
    assert not [line for line in lines if token in line]


async def test_a_server_that_only_reads_takes_nothing(store: Store, api: Api) -> None:
    await start(api, "paid", None)
    path = await given()
    server = Server(store=store, auth=KeyAccess(KEY), app=app, hosts=[HOST], read_only=True)
    transport = httpx.ASGITransport(server)
    async with server, httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as http:
        headers = {"Authorization": f"Bearer {KEY}"}
        assert (await http.post(path, json=1, headers=headers)).status_code == 404


async def test_a_server_answers_to_the_host_of_its_urls(
    store: Store, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_PUBLIC_URL", "https://shop.example.com/ops")
    await start(api, "paid", None)
    path = (await given()).removeprefix("/ops")
    server = Server(store=store, auth=KeyAccess(KEY), app=app)
    async with server, httpx.AsyncClient(transport=httpx.ASGITransport(server)) as http:
        taken = await http.post(f"http://shop.example.com{path}", json=1)
        assert taken.json() == {"changed": True, "detail": "received"}
        assert (await http.post(f"http://evil.example.com{path}", json=1)).status_code == 421


def test_the_description_says_that_it_is_open() -> None:
    from holdfast.server.api.openapi import describe
    from holdfast.server.api.table import operations

    paths = describe(operations(read_only=False))["paths"]
    described = paths["/v1/hooks/{token}"]["post"]
    assert (described["security"], described["x-level"]) == ([], "open")
    assert {"403", "404", "410", "422", "503"} <= described["responses"].keys()
    assert "/v1/hooks/{token}" not in describe(operations(read_only=True))["paths"]
