"""A server over several databases says what it lacks while one is away."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from holdfast import Client
from holdfast.server import Server
from holdfast.server.access import KeyAccess
from holdfast.store.port import Store
from holdfast.store.shards import sharded
from tests.server.shop import HOST, KEY
from tests.shards.app import app, gather_signals
from tests.shards.engine import away, engine_of, id_of, opened


@pytest.fixture
async def store(urls: list[str]) -> AsyncIterator[Store]:
    """Provide the store of clients."""
    async with engine_of(opened(urls)):
        found = sharded(opened(urls))
        await found.open()
        yield found
        await found.close()


@pytest.fixture
async def http(store: Store) -> AsyncIterator[httpx.AsyncClient]:
    """Provide a client of the server."""
    async with Server(store=store, auth=KeyAccess(KEY), app=app, hosts=[HOST]) as server:
        yield httpx.AsyncClient(
            transport=httpx.ASGITransport(server),
            base_url=f"http://{HOST}",
            headers={"Authorization": f"Bearer {KEY}"},
        )


async def test_a_bulk_change_says_which_shard_it_lacks(
    http: httpx.AsyncClient, store: Store, urls: list[str]
) -> None:
    """Fault: its text was kept back, as those of other errors may name hosts."""
    async with Client(store=store, app=app) as client:
        for shard in (0, 1, 2):
            await client.start(gather_signals, 1, run_id=id_of(shard))
    dry = await bulk(http, dry_run=True)
    assert dry == ("done", {"matched": 3, "changed": 3, "unchanged": 0})
    async with away(urls[1]):
        dry = await bulk(http, dry_run=True)
        assert dry == ("done", {"matched": 2, "changed": 2, "unchanged": 0, "shards_away": [1]})
        name, problem = await bulk(http, dry_run=False)
        assert (name, problem["status"]) == ("problem", 503)
        assert "shard 1 is away" in problem["detail"]
        assert "2 have changed; the same call again" in problem["detail"]


async def test_a_search_for_a_run_says_that_its_shard_is_away(
    http: httpx.AsyncClient, urls: list[str]
) -> None:
    """Fault: the page said that no run had this key."""
    assert (await http.get(f"/login?key={KEY}")).status_code == 303
    async with away(urls[1]):
        answer = await http.get("/runs?q=gather_signals/no-such-key")
        assert (answer.status_code, "shard 1 is away" in answer.text) == (503, True)


async def bulk(http: httpx.AsyncClient, *, dry_run: bool) -> tuple[str, dict[str, Any]]:
    """Cancel all runs, and return the last event of the answer."""
    body: dict[str, Any] = {"do": "cancel", "where": {}, "dry_run": dry_run}
    answer = await http.post("/v1/bulk", json=body)
    frame = answer.text.strip().split("\n\n")[-1]
    fields = dict(line.split(": ", 1) for line in frame.splitlines())
    return fields["event"], json.loads(fields["data"])
