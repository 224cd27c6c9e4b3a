"""`client.webhooks` on both stores, with a worker, and without asyncio."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

import pytest
from tests.runtime.desk import eventually

from holdfast import App, Context
from holdfast.client import Client, RunHandle
from holdfast.errors import RunNotFound, SignatureInvalid, WebhookClosed, WebhookSecretMissing
from holdfast.payloads import AesGcm, LargePayloads
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.sync import SyncClient
from holdfast.webhooks import new_secret, sign
from holdfast.worker import Worker


def make_app(**options: object) -> App:
    app = App("pay", **options)  # type: ignore[arg-type]

    @app.workflow
    async def paid(ctx: Context, secret: str | None) -> object:
        hook = ctx.webhook("paid", secret=secret)
        return await hook.received()

    return app


@asynccontextmanager
async def working(store: Store, app: App) -> AsyncIterator[Client]:
    worker = Worker(app, store)
    await worker.start()
    async with Client(store=store, app=app) as client:
        yield client
    await worker.stop(grace=0)


async def url_of(client: Client, run_id: UUID) -> str:
    found: list[str] = []

    async def opened() -> bool:
        found.extend(each.url for each in await client.webhooks.list(run_id))
        return bool(found)

    await eventually(opened)
    return found[0]


async def begun(client: Client, secret: str | None = None) -> tuple[RunHandle[object], str]:
    handle = await client.start("paid", secret)
    return handle, await url_of(client, handle.run_id)


async def test_a_post_wakes_the_run(store: Store) -> None:
    async with working(store, make_app()) as client:
        handle, url = await begun(client)
        [hook] = await client.webhooks.list(handle.run_id)
        assert (hook.run_id, hook.key, hook.url) == (handle.run_id, "paid", url)
        assert await client.webhooks.receive(url, b'{"a":1}')
        assert await client.webhooks.list(handle.run_id) == []
        assert await handle.result("60s") == {"a": 1}
        assert not await client.webhooks.receive(url.rpartition("/")[2], b'{"a":2}')
        with pytest.raises(RunNotFound):
            await client.webhooks.list(uuid4())


async def test_a_run_that_has_ended_has_no_open_webhook(store: Store) -> None:
    async with working(store, make_app()) as client:
        handle, url = await begun(client)
        await handle.terminate()
        assert await client.webhooks.list(handle.run_id) == []
        with pytest.raises(WebhookClosed, match=f"webhook paid of run {handle.run_id}"):
            await client.webhooks.receive(url)


async def test_a_secret_comes_from_the_environment_or_the_caller(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(store, make_app()) as client:
        handle, url = await begun(client, "PAY_SECRET")
        secret, moment = new_secret(), int(time.time())
        headers = {
            "webhook-id": "m",
            "webhook-timestamp": str(moment),
            "webhook-signature": sign(secret, "m", moment, b"1"),
        }
        with pytest.raises(WebhookSecretMissing, match="PAY_SECRET"):
            await client.webhooks.receive(url, b"1", headers=headers)
        with pytest.raises(SignatureInvalid):
            await client.webhooks.receive(url, b"1", secrets={"PAY_SECRET": secret})
        given = {"PAY_SECRET": secret}
        assert await client.webhooks.receive(url, b"1", headers=headers, secrets=given)
        monkeypatch.setenv("PAY_SECRET", secret)
        assert not await client.webhooks.receive(url, b"1", headers=headers)
        assert await handle.result("60s") == 1


async def test_encrypted_runs_have_encrypted_urls_and_bodies(store: Store) -> None:
    app = make_app(payload_codec=AesGcm({"k1": os.urandom(32)}))
    async with working(store, app) as client:
        handle, url = await begun(client, None)
        token = url.rpartition("/")[2]
        async with Client(store=store) as stranger:
            [hook] = await stranger.webhooks.list(handle.run_id)
            assert token not in hook.url
        assert await client.webhooks.receive(url, b'{"card":"4711"}')
        assert await handle.result("60s") == {"card": "4711"}
        stored = (await store.read_events([(handle.run_id, 0)]))[handle.run_id]
        texts = "".join(event.details or "" for event in stored)
        assert (token in texts, "4711" in texts) == (False, False)


async def test_a_large_body_is_an_object(store: Store, tmp_path: object) -> None:
    app = make_app(large_payloads=LargePayloads(f"file://{tmp_path}", above=1024))
    async with working(store, app) as client:
        handle, url = await begun(client)
        body = json.dumps("x" * 5000).encode()
        assert await client.webhooks.receive(url, body)
        assert await handle.result("60s") == "x" * 5000
        stored = (await store.read_events([(handle.run_id, 0)]))[handle.run_id]
        assert max(len(event.details or "") for event in stored) < 2000


def test_posts_without_asyncio() -> None:
    store, app = MemoryStore(), make_app()

    async def begin() -> tuple[UUID, str]:
        async with working(store, app) as client:
            handle, url = await begun(client)
            return handle.run_id, url

    run_id, url = asyncio.run(begin())
    with SyncClient(store=store, app=app) as client:
        assert [each.url for each in client.webhooks.list(run_id)] == [url]
        assert client.webhooks.receive(url, b"1")
        assert not client.webhooks.receive(url, b"1")
