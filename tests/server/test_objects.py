"""The API while the object store of large payloads refuses every call."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import NoReturn

import httpx
import pytest

from holdfast import App, Context
from holdfast.errors import ObjectsUnavailable
from holdfast.payloads import LargePayloads, shelf
from holdfast.server import Server
from holdfast.server.access import KeyAccess
from holdfast.store.port import Store
from tests.server.shop import HOST, KEY, Api

BIG = "big " * 2_000
HIDDEN = "403 of http://storage.internal:9000/bucket"


class Refusing:
    """Objects of a store that refuses each call, with a text that is not for callers."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def put(self, name: str, data: bytes) -> NoReturn:
        """Refuse."""
        raise ObjectsUnavailable(self.url, HIDDEN)

    async def get(self, name: str, start: int = 0, length: int | None = None) -> NoReturn:
        """Refuse."""
        raise ObjectsUnavailable(self.url, HIDDEN)


@pytest.fixture
def large(tmp_path: Path) -> App:
    """Return an app with large payloads in a folder."""
    app = App("large", large_payloads=LargePayloads(f"file://{tmp_path}/objects", above="4kB"))

    @app.workflow
    async def echo(ctx: Context, text: str) -> str:
        return text

    return app


@pytest.fixture
async def server(store: Store, large: App) -> AsyncIterator[Server]:
    """Provide a server that has the option."""
    async with Server(store=store, auth=KeyAccess(KEY), app=large, hosts=[HOST]) as opened:
        yield opened


async def test_a_start_that_cannot_be_stored_names_no_hosts(
    api: Api, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has the reason, as for a database that is away."""
    monkeypatch.setattr(shelf, "_PUT_SECONDS", 0.1)
    monkeypatch.setattr(store, "objects_at", Refusing)
    problem = await api.ask("POST", "/v1/workflows/echo/runs", {"input": BIG}, status=503)
    assert problem["detail"].startswith("The object store cannot be used now: try again")
    assert "storage.internal" not in str(problem)
    assert (await api.ask("GET", "/v1/runs"))["runs"] == []


async def test_a_file_has_a_payload_and_not_what_stands_for_it(
    server: Server, api: Api, store: Store, large: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be read now is refused: a program would take it for the payload."""
    started = await api.ask("POST", "/v1/workflows/echo/runs", {"input": BIG}, status=201)
    run = started["run_id"]
    paths = [f"/v1/runs/{run}/input", f"/runs/{run}/download/input"]
    for path in paths:
        assert await api.ask("GET", path) == BIG
    monkeypatch.setattr(store, "objects_at", Refusing)
    async with Server(store=store, auth=KeyAccess(KEY), app=large, hosts=[HOST]) as other:
        headers = {"Authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(other), base_url=f"http://{HOST}", headers=headers
        ) as http:
            for path in paths:
                answer = await http.get(path)
                assert answer.status_code == 503, path
                assert "storage.internal" not in answer.text
                assert answer.headers["retry-after"] == "1"
