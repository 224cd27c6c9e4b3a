"""What callers ask with the names of others: filters, searches, tools, and runs of two apps."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from holdfast import App, Client, Context
from holdfast.mcp.calling import Toolbox
from holdfast.mcp.tools import TOOLS, Tool
from holdfast.server import Principal
from holdfast.server.access import AnyAccess
from holdfast.server.api.table import OPERATIONS
from holdfast.server.pages.table import TABLE
from holdfast.server.site import Site
from holdfast.store.memory import MemoryStore
from holdfast.worker import Worker
from tests.server.seen import SECRET, Asker, Furnished, asking, furnished
from tests.server.test_seen import GHOST, OF_SHOP, body_of, logs_of, memory, plain, urls_of

ALL = Principal("all", "admin")
MOMENT = r"\d{4}-\d\d-\d\d[T ][\d:.]+(?:Z| UTC)"
MOVING = rf"{MOMENT}|\d+\.\d+|(?<!-)\b\d{{6,}}\b(?!-)|\b[\d.]+ m?s\b"  # not a part of an id


def asked_of(of: Furnished) -> Mapping[str, list[str]]:
    """Return values of parameters that name what an app has."""
    run = str(of.runs["work"])
    return {
        "workflow": [f"{of.app}/work", f"{of.app}/graph"],
        "tag": [f"{of.app}-tag"],
        "where": [f"owner={of.app}"],
        "key": [f"{of.app}-key"],
        "parent": [run],
        "run": [run],
        "app": [of.app],
        "queue": [f"{of.app}-mail"],
        "q": [
            run,
            run[-8:],
            f"{of.app}-key",
            f"{of.app}/work/{of.app}-key",
            f"{of.app}/work",
            f"tag:{of.app}-tag",
            f"owner={of.app}",
        ],
    }


def lists_of(of: Furnished) -> list[str]:
    """Return the addresses of all lists, each with each filter that names what an app has."""
    found: list[str] = []
    asked = asked_of(of)
    for operation in OPERATIONS:
        if operation.method == "GET" and "{run}" not in operation.path:
            fields = operation.query.__struct_fields__
            for url, _ in urls_of(operation, of):
                to = "&" if "?" in url else "?"
                for name in fields:
                    if name != "app":
                        found += [f"{url}{to}{name}={each}" for each in asked.get(name, ())]
                if {"workflow", "key"} <= set(fields):
                    found.append(f"{url}{to}workflow={of.app}/work&key={of.app}-key")
    for row in TABLE:
        if row.method == "GET" and "{" not in row.path:
            always = {"do": "cancel", "name": f"{of.app}/work"}
            begin = "".join(f"{name}={always[name]}&" for name in always if name in row.query)
            for name in row.query:
                found += [f"{row.path}?{begin}{name}={each}" for each in asked.get(name, ())]
            found.append(f"{row.path}?{begin}")
    return found


def settled(answer: str, of: Furnished) -> str:
    run = str(of.runs["work"])
    for each in (run, run[-12:]):  # pages show the end of an id
        answer = answer.replace(each, "RUN")
    return re.sub(MOVING, "", plain(answer, of))


async def test_no_filter_tells_of_what_is_not_seen() -> None:
    async with furnished(memory()) as (asker, _, vault):
        told = 0
        drawn = r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"
        for url, ghost_url in zip(lists_of(vault), lists_of(GHOST), strict=True):
            asker.principal = ALL
            whole = await asker.ask("GET", url)
            told += any(str(each) in whole for each in vault.runs.values())
            asker.principal = OF_SHOP
            found = settled(await asker.ask("GET", url), vault)
            absent = settled(await asker.ask("GET", ghost_url), GHOST)
            assert re.sub(drawn, "", found) == re.sub(drawn, "", absent), url
        assert told > 10, "the filters find nothing"
        for by in ("workflow", "tag", "owner"):
            asker.principal = ALL
            assert "vault" in await asker.ask("GET", f"/v1/runs/count?by={by}")
            asker.principal = OF_SHOP
            counted = await asker.ask("GET", f"/v1/runs/count?by={by}")
            assert "shop" in counted
            assert "vault" not in counted


async def test_each_page_of_the_navigation_is_there_for_those_who_see_less() -> None:
    async with furnished(memory()) as (asker, _, vault):
        for asker.principal in (OF_SHOP, Principal("a", "read", ("shop/work",), payloads=False)):
            places = set(re.findall(r'href="(/[a-z]*)"', await asker.ask("GET", "/runs")))
            places &= {row.path for row in TABLE}
            assert {"/", "/runs", "/queues", "/workers"} <= places
            for place in places:
                for live in ("", "?live=1"):
                    answer = await asker.ask("GET", place + live)
                    assert answer.startswith("200 ") or live, (place, answer)
                    assert "vault" not in answer, place
                    assert not any(str(each) in answer for each in vault.runs.values())


def arguments_of(tool: Tool, of: Furnished, run: UUID) -> dict[str, Any]:
    """Return arguments of a tool that name what an app has."""
    path = {"run": str(run), "workflow": f"{of.app}/work", "event": "go", "stream": "words"}
    found: dict[str, Any] = {name: path[name] for name in tool.path}
    if tool.operation is not None:
        body = body_of(tool.operation, of, run)
        known = tool.schema()["properties"]
        given = body if isinstance(body, dict) else {"payload": body}
        found |= {name: each for name, each in given.items() if name in known}
        for name, values in asked_of(of).items():
            if name in tool.operation.query.__struct_fields__ and name in known:
                kind = known[name]
                found.setdefault(name, values if "array" in str(kind) else values[0])
        if "by" in known:
            found["by"] = "owner"
    return found


async def test_no_tool_tells_agents_of_what_is_not_seen() -> None:
    store = memory()
    async with furnished(store) as (_, shop, vault):
        before = await logs_of(store, vault)
        site = Site(store=store, access=AnyAccess())
        narrow = Toolbox(site, may_write=True, only=["shop"])
        blind = Toolbox(site, may_write=False, payloads=False)
        for tool in TOOLS:
            for kind in ("work", "graph") if "run" in tool.path else ("work",):
                run, ghost = vault.runs[kind], GHOST.runs[kind]
                found = await narrow.call(tool.name, arguments_of(tool, vault, run))
                absent = await narrow.call(tool.name, arguments_of(tool, GHOST, ghost))
                assert found.failed == absent.failed, (tool.name, found.text)
                assert settled(found.text, vault) == settled(absent.text, GHOST), tool.name
                if "run" in tool.path:
                    assert found.failed, (tool.name, kind)
                    assert "argument" not in found.text, found.text
                seen = await blind.call(tool.name, arguments_of(tool, shop, shop.runs[kind]))
                assert SECRET not in seen.text, tool.name
        assert await logs_of(store, vault) == before
        await site.close()


@asynccontextmanager
async def of_two_apps(store: MemoryStore) -> AsyncIterator[tuple[Asker, UUID, UUID]]:
    """Serve a database with a run of `vault`, and the run of `shop` that it has started."""
    shop, vault = App("shop"), App("vault")

    @shop.workflow
    async def leaf(ctx: Context, text: str) -> str:
        return text

    @vault.workflow
    async def root(ctx: Context, text: str) -> str:
        return await leaf(text)

    workers = [Worker(each, store) for each in (shop, vault)]
    for each in workers:
        await each.start()
    async with asking(store) as asker, Client(store=store, app=vault) as client:
        handle = await client.start(root, "x")
        await handle.result()
        [child] = (await client.runs.list(parent=handle.run_id)).runs
        for each in workers:
            await each.stop(grace=0)
        yield asker, handle.run_id, child.run_id


async def test_a_run_does_not_name_a_parent_that_is_not_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in the database nor in the archive; to those who see both it does."""
    monkeypatch.setenv("HOLDFAST_ARCHIVE", f"file://{tmp_path}")
    shift = 0
    store = MemoryStore(clock=lambda: time.time_ns() // 1000 + shift)
    async with of_two_apps(store) as (asker, parent, child):
        lists = ["/v1/runs", "/runs", "/v1/runs?workflow=shop/leaf"]
        for place in ("database", "archive"):
            of_run = [f"/v1/runs/{child}", f"/v1/runs/{child}/attach", f"/runs/{child}"]
            for asker.principal in (ALL, Principal("b", "read", ("shop", "vault/root"))):
                for url in of_run:
                    assert str(parent) in await asker.ask("GET", url), (place, url)
            for asker.principal in (OF_SHOP, Principal("b", "read", ("shop",), payloads=False)):
                for url in [*of_run, *lists]:
                    answer = await asker.ask("GET", url)
                    assert answer.startswith("200 ")
                    assert str(parent) not in answer, (place, url)
                    assert '"parent_key":"leaf"' not in answer, (place, url)
            shift = 90 * 86_400_000_000
            await asyncio.sleep(0)
            await asker.server.site.client.retention.sweep()
