"""What a server keeps for callers who see less of it is bounded, however many limits they have."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import AsyncExitStack

import httpx
import pytest

from holdfast import App, Client, Context
from holdfast.server import Principal, Server
from holdfast.server.narrow_sites import MOST, NarrowSites
from holdfast.server.pages import bulk
from holdfast.server.site import Site
from holdfast.store.memory import MemoryStore
from holdfast.types import Delivered
from tests.server.seen import asking
from tests.server.shop import HOST


class _Things:
    """Makes things, and notes which are closed."""

    def __init__(self) -> None:
        self.made: list[Principal] = []
        self.closed: list[Principal] = []

    async def make(self, principal: Principal, stack: AsyncExitStack) -> Principal:
        await asyncio.sleep(0)
        self.made.append(principal)
        stack.callback(self.closed.append, principal)
        return principal


def seeing(*only: str, payloads: bool = True) -> Principal:
    return Principal("ann", "admin", only, payloads)


async def test_what_was_not_used_for_longest_is_closed_but_nothing_that_is_in_use() -> None:
    things = _Things()
    sites = NarrowSites(things.make, most=2)
    a, b, c, d = (seeing(each) for each in "abcd")
    async with sites.use(a) as first:
        for each in (b, c, b, d):
            async with sites.use(each):
                pass
        await asyncio.sleep(0)
        assert things.closed == [c]
        async with sites.use(Principal("bob", "read", ("a", "a"))) as again:
            assert again is first, "the same limits, another caller"
    await asyncio.sleep(0)
    assert things.closed == [c, b]
    assert len(sites) == 2
    await sites.close()
    assert sorted(things.closed, key=str) == sorted((a, b, c, d), key=str)
    await sites.close()


async def test_one_is_made_for_all_who_ask_at_the_same_time() -> None:
    things = _Things()
    sites = NarrowSites(things.make)

    async def use(*only: str) -> None:
        async with sites.use(seeing(*only)):
            await asyncio.sleep(0)

    await asyncio.gather(*(use(*only) for only in (("a", "b"), ("b", "a")) for _ in range(5)))
    assert len(things.made) == 1


async def test_one_that_cannot_be_made_is_not_kept() -> None:
    closed: list[str] = []

    async def fail(_: Principal, stack: AsyncExitStack) -> str:
        stack.callback(closed.append, "half")
        raise OSError

    sites = NarrowSites(fail)
    with pytest.raises(OSError):
        async with sites.use(seeing("a")):
            pass
    assert (len(sites), closed) == (0, ["half"])


async def test_a_proxy_that_says_another_limit_each_time_does_not_fill_the_server() -> None:
    """Neither with sites, nor with what their pages and their readers keep."""
    store = MemoryStore()
    async with asking(store) as asker:
        site = asker.server.site
        seen: list[weakref.ref[Site]] = []
        for number in range(MOST + 20):
            asker.principal = seeing(f"app{number}", payloads=number % 2 == 0)
            for path in ("/v1/runs", "/", *(["/runs?live=1"] if number < 5 else [])):
                assert (await asker.ask("GET", path)).startswith("200 "), path
            async with site.seen_by(asker.principal) as narrow:
                seen.append(weakref.ref(narrow))
        del narrow
        assert len(site._narrow) == MOST
        for _ in range(10):
            await asyncio.sleep(0)
        gc.collect()
        assert sum(each() is not None for each in seen) <= MOST
    assert len(site._narrow) == 0


async def test_a_stream_goes_on_while_others_with_other_limits_come() -> None:
    store, app = MemoryStore(), App("shop")

    @app.workflow
    async def work(ctx: Context) -> None:
        await ctx.wait_for_signal("go")

    principal = seeing("shop")
    async with (
        Server(store=store, auth=lambda _: principal, hosts=[HOST], stream_seconds=60) as server,
        Client(store=store, app=app) as client,
    ):
        handle = await client.start(work)
        transport = httpx.ASGITransport(server)
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as http:
            following = asyncio.create_task(http.get(f"/v1/runs/{handle.run_id}/attach"))
            while not server.site.streams.count:
                await asyncio.sleep(0)
            for number in range(MOST + 5):
                principal = seeing(f"app{number}")
                assert (await http.get("/v1/runs")).status_code == 200
            assert len(server.site._narrow) == MOST + 1
            await handle.terminate()
            async with asyncio.timeout(20):
                answer = await following
        assert "event: end" in answer.text


async def test_a_change_to_many_runs_ends_while_others_with_other_limits_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, app = MemoryStore(), App("shop")

    @app.workflow
    async def work(ctx: Context) -> None:
        await ctx.wait_for_signal("go")

    hold = asyncio.Event()
    terminate = store.terminate_runs

    async def held(*given: object, **options: object) -> Delivered:
        await hold.wait()
        return await terminate(*given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "terminate_runs", held)
    async with asking(store) as asker, Client(store=store, app=app) as client:
        handle = await client.start(work)
        asker.principal = seeing("shop")
        form = {"do": "terminate", "count": "1", "typed": "1", "job": "j1"}
        assert (await asker.ask("POST", "/bulk?workflow=shop/work", form=form)).startswith("303 ")
        for number in range(MOST + 5):
            asker.principal = seeing(f"app{number}")
            assert (await asker.ask("GET", "/v1/runs")).startswith("200 ")
        asker.principal = seeing("shop")
        async with asker.server.site.seen_by(asker.principal) as site:
            [job] = site.kept(bulk._jobs).values()
        hold.set()
        await job.task
        assert (job.state, job.error) == ("completed", "")
        assert (await client.runs.get(handle.run_id)).status == "terminated"


@pytest.mark.parametrize("principal", [seeing(), seeing("shop"), seeing(payloads=False)])
async def test_a_start_is_of_the_newest_version_for_every_caller(principal: Principal) -> None:
    """Fault: callers who see less started version 1, with an input for the newest."""
    store, app = MemoryStore(), App("shop")

    @app.workflow(name="work", version=1)
    async def older(ctx: Context, number: int) -> None: ...

    @app.workflow(version=3)
    async def work(ctx: Context, text: str) -> None: ...

    server = Server(store=store, app=app, auth=lambda _: principal, hosts=[HOST])
    transport = httpx.ASGITransport(server)
    async with (
        server,
        Client(store=store) as client,
        httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as http,
    ):
        for given, version in (({}, 3), ({"version": 1}, 1), ({"version": 3}, 3)):
            body = {"input": 7 if version == 1 else "x", **given}
            answer = await http.post("/v1/workflows/work/runs?app=shop", json=body)
            assert answer.status_code == 201, answer.text
            assert (await client.runs.get(answer.json()["run_id"])).version == version


async def test_a_name_that_needs_its_app_is_refused_with_the_parameter() -> None:
    """Fault: it said to write APP/NAME, for which the API has no path. A page has one."""
    async with asking(MemoryStore()) as asker:
        asker.principal = seeing()
        refused = await asker.ask("POST", "/v1/workflows/work/runs", {"input": 1})
        assert refused.startswith("404 ")
        assert "?app=APP" in refused
        begun = await asker.ask("POST", "/v1/workflows/work/runs?app=shop", {"input": 1})
        assert begun.startswith("201 ")
        refused = await asker.ask("GET", "/bulk?do=cancel&workflow=nobody")
        assert refused.startswith("404 ")
        assert "?app=" not in refused
