"""A caller that sees less sees of the archive what it may see, on each path, and nothing else."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from holdfast.mcp.calling import Toolbox
from holdfast.mcp.tools import TOOLS
from holdfast.server import Principal
from holdfast.server.access import AnyAccess
from holdfast.server.api.table import OPERATIONS
from holdfast.server.hiding import MARK
from holdfast.server.pages.table import TABLE
from holdfast.server.site import Site
from holdfast.store.memory import MemoryStore
from holdfast.values.ids import uuid7
from tests.server.seen import SECRET, Asker, Furnished, furnished
from tests.server.test_seen import BLIND, GHOST, OF_SHOP, TABS, body_of, plain, urls_of

MONTHS = 90 * 86_400_000_000  # microseconds: all retention is over
ALL = Principal("all", "admin")
OF_VAULT = Principal("a", "admin", ("vault",))
BLIND_OF_VAULT = Principal("a", "admin", ("vault",), payloads=False)
BESIDE = Principal("a", "admin", ("shop", "vault/nothing"))


@asynccontextmanager
async def archived(
    where: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[MemoryStore, Asker, Furnished, Furnished]]:
    """Serve a database whose runs, of both apps, are in the archive alone. Its time stands."""
    monkeypatch.setenv("HOLDFAST_ARCHIVE", f"file://{where}")
    now: list[int] = []
    store = MemoryStore(clock=lambda: now[0] if now else time.time_ns() // 1000)
    async with furnished(store) as (asker, shop, vault):
        client = asker.server.site.client
        await client.runs.terminate_all({})
        ids = [*shop.runs.values(), *vault.runs.values()]
        while any(run.status == "running" for run in (await store.get_runs(ids)).values()):
            await client.runs.terminate_all({})
        now.append(time.time_ns() // 1000 + MONTHS)
        assert await client.retention.sweep() >= len(ids)
        assert await store.get_runs(ids) == {}
        yield store, asker, shop, vault


def pages_of(run: UUID) -> list[str]:
    """Return the addresses of all pages about a run."""
    whats = ("input", "output", "0", "3", "5")
    found = [
        row.path.format(run=run, what=what)
        for row in TABLE
        if row.method == "GET" and "{run}" in row.path
        for what in (whats if "{what}" in row.path else ("",))
    ]
    tabs = [f"/runs/{run}?tab={tab}" for tab in TABS]
    return [*found, *tabs, f"/runs/{run}?live=1", f"/runs/{run}?tab=streams&stream=words"]


def reads(of: Furnished) -> list[tuple[str, str, Any, UUID]]:
    """Return all requests about runs but the restore, each with its run; none changes anything."""
    found: list[tuple[str, str, Any, UUID]] = []
    for operation in OPERATIONS:
        if "{run}" in operation.path and operation.name != "restore_run":
            for url, run in urls_of(operation, of):
                found.append((operation.method, url, body_of(operation, of, run), run))
    found += [("GET", url, None, run) for run in of.runs.values() for url in pages_of(run)]
    return found


def still(answer: str) -> str:
    """Return an answer without its frame, which differs, and without ids that were just drawn."""
    head, _, rest = answer.partition("<main")
    main = f"{head[:4]} {rest.partition('</main>')[0]}" if rest else answer
    return re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", "ID", main)


async def test_each_path_shows_archived_runs_to_those_who_may_see_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with archived(tmp_path, monkeypatch) as (store, asker, _, vault):
        names: dict[UUID, str] = {}
        for run in vault.runs.values():
            record = (await asker.server.site.reader.runs.get(run)).record
            assert record.archive is not None
            names[run] = record.full_name
        shown = hidden = 0
        vault.runs = {kind: vault.runs[kind] for kind in ("work", "graph")}
        ghost = replace(GHOST, runs={kind: GHOST.runs[kind] for kind in vault.runs})
        for (method, url, body, run), (_, ghost_url, ghost_body, _) in zip(
            reads(vault), reads(ghost), strict=True
        ):
            asker.principal = ALL
            whole = await asker.ask(method, url, body)
            asker.principal = Principal("a", "admin", (names[run],))
            assert still(await asker.ask(method, url, body)) == still(whole), url
            shown += SECRET in whole
            asker.principal = BLIND_OF_VAULT
            masked = await asker.ask(method, url, body)
            assert masked[:4] == whole[:4], (url, masked)
            assert SECRET not in masked, url
            hidden += MARK in masked
            others = Principal("a", "admin", ("shop", *({*names.values()} - {names[run]})))
            asker.principal = others
            absent = still(plain(await asker.ask(method, ghost_url, ghost_body), GHOST))
            found = await asker.ask(method, url, body)
            assert found.startswith("404 "), (url, found)
            assert still(plain(found, vault)) == absent, url
            assert str(tmp_path) not in found
        assert shown > 30
        assert hidden > 30
        assert await store.get_runs(list(vault.runs.values())) == {}


async def test_tools_show_archived_runs_to_agents_that_may_see_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with archived(tmp_path, monkeypatch) as (store, _, _, vault):
        site = Site(store=store, access=AnyAccess())

        async def call(name: str, run: UUID, *only: str, payloads: bool = True) -> str:
            tools = Toolbox(site, may_write=False, only=only, payloads=payloads)
            more = {"stream": "words"} if name == "read_stream" else {}
            answer = await tools.call(name, {"run": str(run), **more})
            return f"{answer.failed} {answer.text}"

        names = [each.name for each in TOOLS if "run" in each.path and not each.writes]
        assert "get_run" in names
        run, ghost = vault.runs["work"], GHOST.runs["work"]
        for name in names:
            whole = await call(name, run)
            assert whole.startswith("False "), (name, whole)
            assert await call(name, run, "vault") == whole
            assert await call(name, run, "vault/work") == whole
            assert SECRET not in await call(name, run, payloads=False)
            assert SECRET not in await call(name, run, "vault", payloads=False)
            found = await call(name, run, "shop", "vault/broken")
            assert found.startswith("True ")
            assert plain(found, vault) == plain(await call(name, ghost, "shop"), GHOST)
        await site.close()


async def test_an_archived_run_is_restored_by_those_who_see_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with archived(tmp_path, monkeypatch) as (store, asker, _, vault):
        run = vault.runs["work"]

        async def restore(run: UUID) -> str:
            return await asker.ask("POST", f"/v1/runs/{run}/restore", {})

        for asker.principal in (OF_SHOP, BESIDE, Principal("a", "admin", ("vault/broken",))):
            found, absent = await restore(run), await restore(GHOST.runs["work"])
            assert found.startswith("404 ")
            assert plain(found, vault) == plain(absent, GHOST)
        for asker.principal in (BLIND, BLIND_OF_VAULT):
            assert (await restore(run)).startswith("403 ")
        assert await store.get_runs([run]) == {}
        asker.principal = Principal("a", "admin", ("vault/work",))
        assert (await restore(run)).startswith("200 ")
        assert '"archive":null' in await asker.ask("GET", f"/v1/runs/{run}")
        assert (await restore(run)).startswith("409 ")
        asker.principal = BLIND_OF_VAULT
        masked = await asker.ask("GET", f"/v1/runs/{run}")
        assert masked.startswith("200 ")
        assert SECRET not in masked
        asker.principal = OF_SHOP
        assert (await asker.ask("GET", f"/v1/runs/{run}")).startswith("404 ")
        assert (await restore(run)).startswith("404 ")


async def test_an_object_that_is_damaged_does_not_tell_of_the_runs_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with archived(tmp_path, monkeypatch) as (_, asker, _, vault):
        for each in (tmp_path / "runs").rglob("*.gz"):
            each.write_bytes(b"damaged")
        url = f"/v1/runs/{vault.runs['work']}"
        asker.principal = OF_VAULT
        assert (await asker.ask("GET", url)).startswith("503 ")
        asker.principal = OF_SHOP
        assert (await asker.ask("GET", url)).startswith("404 ")
        assert (await asker.ask("GET", f"/v1/runs/{uuid7()}")).startswith("404 ")
