"""`app.mcp()` over streamable HTTP, spoken with the SDK's own client."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

import httpx
import pytest
import uvicorn
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, TextContent
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from holdfast import App, Context
from holdfast.client.runs import Runs
from holdfast.errors import ConfigurationError, DatabaseUnavailable
from holdfast.mcp.server import McpServer
from holdfast.server.access import Principal
from holdfast.server.running import bind
from holdfast.store.port import Store
from holdfast.worker import Worker

app = App("till")


@dataclass
class Line:
    name: str
    count: int = 1


@dataclass
class Order:
    customer: str
    lines: list[Line]
    speed: Literal["slow", "fast"] = "slow"


@dataclass
class Receipt:
    total: int
    of: Order


@app.workflow
async def checkout(ctx: Context, order: Order) -> Receipt:
    """Sell what a customer ordered.

    This is not shown.
    """
    return Receipt(sum(line.count for line in order.lines), order)


@app.workflow(name="wait.for.packing")
async def packing(ctx: Context, boxes: int = 2) -> int:
    got: int = await ctx.wait_for_signal("packed", type=int)
    return boxes + got


@app.workflow
async def breaks(ctx: Context) -> None:
    raise ValueError("out of stock")


@app.workflow
async def prints(ctx: Context, size: int) -> str:
    return size * "x"


@app.entity
@dataclass
class Till:
    key: str

    async def close(self) -> str:
        await asyncio.sleep(3600)
        return "closed"


@app.workflow
async def asks(ctx: Context, what: str) -> str:
    if what == "till":
        return await ctx.entity(Till, "a").close()
    return (await ctx.request_approval(f"Sell {what}?")).by or ""


@app.workflow
async def secret(ctx: Context) -> str:
    return "secret"


@app.job
async def mail(to: str, text: str = "hello", copies: int = 1) -> str:
    """Send a mail."""
    return f"{text} {to} x{copies}"


graph = app.flow("graph", input=str)


@graph.step
async def words(run: str) -> list[str]:
    return run.split()


NAMES = ("checkout", "wait.for.packing", "breaks", "prints", "mail", "graph")


def who(request: Request) -> Principal | None:
    levels: dict[str, Literal["read", "write"]] = {"Bearer write": "write", "Bearer read": "read"}
    level = levels.get(request.headers.get("authorization", ""))
    return None if level is None else Principal("ann", level)


@pytest.fixture(autouse=True)
async def _worker(store: Store) -> AsyncIterator[None]:
    worker = Worker(app, store)
    await worker.start()
    yield
    await worker.stop(grace=0)


@asynccontextmanager
async def served(store: Store, **options: Any) -> AsyncIterator[str]:
    """Serve the tools, mounted in a program, at a port of this machine; yield the URL."""
    given: dict[str, Any] = {"auth": who, "workflows": NAMES, "store": store, **options}
    tools = McpServer(app, **given)
    bound = bind("127.0.0.1", 0)
    program = Starlette(routes=[Mount("/agents", tools)])
    process = uvicorn.Server(uvicorn.Config(program, log_config=None, access_log=False))
    process.capture_signals = suppress  # type: ignore[method-assign]
    task = asyncio.create_task(process.serve([bound]))
    try:
        async with tools:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}/agents/"
            process.should_exit = True
            await task
    finally:
        bound.close()


class Agent:
    def __init__(self, session: ClientSession) -> None:
        self.session = session

    async def call(self, tool: str, **arguments: object) -> CallToolResult:
        result = await self.session.call_tool(tool, arguments)
        assert isinstance(result, CallToolResult)
        return result

    async def ask(self, tool: str, **arguments: object) -> Any:
        """Return the structured answer, which the client has compared with the tool's schema."""
        result = await self.call(tool, **arguments)
        assert not result.is_error, result.content
        assert json.loads(texts(result)[0]) == result.structured_content
        return result.structured_content

    async def refused(self, tool: str, **arguments: object) -> str:
        result = await self.call(tool, **arguments)
        assert result.is_error, result.content
        return texts(result)[0]


def texts(result: CallToolResult) -> list[str]:
    return [each.text for each in result.content if isinstance(each, TextContent)]


@asynccontextmanager
async def agent(url: str) -> AsyncIterator[Agent]:
    import httpx2

    async with (
        httpx2.AsyncClient(headers={"Authorization": "Bearer write"}, timeout=60) as http,
        streamable_http_client(url, http_client=http) as streams,
        ClientSession(streams[0], streams[1]) as session,
    ):
        await session.initialize()
        yield Agent(session)


async def test_workflows_are_tools_with_their_types(store: Store) -> None:
    async with served(store) as url, agent(url) as asked:
        tools = {each.name: each for each in (await asked.session.list_tools()).tools}
    assert tools.keys() == {
        "checkout",
        "wait_for_packing",
        "breaks",
        "prints",
        "mail",
        "graph",
        "get_result",
        "send_signal",
    }
    sell = tools["checkout"]
    assert (sell.description or "").startswith("Sell what a customer ordered. Starts a run")
    schema = sell.input_schema
    assert schema["required"] == ["order"]
    assert schema["properties"].keys() == {"order", "wait_seconds", "idempotency_key"}
    assert schema["properties"]["order"] == {"$ref": "#/$defs/Order"}
    assert schema["$defs"]["Order"]["properties"]["speed"]["enum"] == ["fast", "slow"]
    assert schema["$defs"]["Line"]["required"] == ["name"]
    output = sell.output_schema or {}
    assert output["properties"]["output"]["anyOf"][0] == {"$ref": "#/$defs/Receipt"}
    assert tools["wait_for_packing"].input_schema["required"] == []
    assert tools["breaks"].input_schema["properties"].keys() == {"wait_seconds", "idempotency_key"}
    assert tools["graph"].input_schema["required"] == ["input"]
    send = tools["mail"].input_schema
    assert (list(send["properties"])[:3], send["required"]) == (["to", "text", "copies"], ["to"])
    assert "$defs" not in send
    read_only = {name for name, each in tools.items() if each.annotations.read_only_hint}  # type: ignore[union-attr]
    assert read_only == {"get_result"}


async def test_a_run_is_started_and_its_output_returned(store: Store) -> None:
    order = {"customer": "ann", "lines": [{"name": "lamp", "count": 3}], "speed": "fast"}
    async with served(store) as url, agent(url) as asked:
        done = await asked.ask("checkout", order=order)
        assert (done["status"], done["error"]) == ("completed", None)
        assert done["output"] == {"total": 3, "of": order}
        assert (await asked.ask("graph", input="a b"))["output"] == {"words": ["a", "b"]}
        assert (await asked.ask("mail", to="ann", copies=2))["output"] == "hello ann x2"
        assert "to" in await asked.refused("mail", text="x")
        once = await asked.ask("checkout", order=order, idempotency_key="k")
        assert await asked.ask("checkout", order=order, idempotency_key="k") == once
        assert once["run_id"] != done["run_id"]


async def test_a_run_that_waits_is_asked_for_later(store: Store) -> None:
    async with served(store) as url, agent(url) as asked:
        begun = await asked.call("wait_for_packing", wait_seconds=0.2, boxes=5)
        said = begun.structured_content or {}
        assert (said["status"], said["output"]) == ("running", None)
        assert "get_result" in texts(begun)[1]
        run = {"run_id": said["run_id"]}
        async with asyncio.timeout(60):
            while "packed" not in texts(asking := await asked.call("get_result", **run))[1]:
                await asyncio.sleep(0.02)
        assert "send_signal" in texts(asking)[1]
        sent = {**run, "name": "packed", "payload": 4, "idempotency_key": "s"}
        assert await asked.ask("send_signal", **sent) == {**run, "changed": True}
        assert await asked.ask("send_signal", **sent) == {**run, "changed": False}
        assert (await asked.ask("get_result", **run, wait_seconds=60))["output"] == 9
        assert "has ended" in await asked.refused("send_signal", **run, name="packed")


async def test_what_cannot_be_is_told(store: Store) -> None:
    async with served(store) as url, agent(url) as asked:
        assert "customer" in await asked.refused("checkout", order={"lines": []})
        assert "order: give it" in await asked.refused("checkout")
        assert "'colour'" in await asked.refused("checkout", colour="red")
        assert "there is no tool 'secret'" in await asked.refused("secret")
        assert "0 to 300 seconds" in await asked.refused("breaks", wait_seconds=301)
        for key in ("", "k" * 256):
            assert "1 to 255 characters" in await asked.refused("breaks", idempotency_key=key)
        assert "out of stock" in await asked.refused("breaks")
        assert "not a run's id" in await asked.refused("get_result", run_id="7")
        assert "run_id: give it" in await asked.refused("get_result")


async def test_an_output_that_is_too_large_names_its_run(store: Store) -> None:
    """Else an agent starts it again, and again."""
    async with served(store) as url, agent(url) as asked:
        call = {"size": 300_000, "idempotency_key": "a", "wait_seconds": 60}
        told = await asked.refused("prints", **call)
        run = UUID(told.split()[1])
        assert told.startswith(f"run {run} completed; its output has 300,002 bytes, and 262,144 at")
        assert await asked.refused("get_result", run_id=str(run)) == told


async def test_a_start_whose_answer_fails_names_its_run(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is there, although the database was away before it ended."""

    async def away(*_: object) -> None:
        raise DatabaseUnavailable("no server answers")

    monkeypatch.setattr(Runs, "wait", away)
    async with served(store) as url, agent(url) as asked:
        told = await asked.refused("prints", size=1)
        run = UUID(told.split()[1])
        assert told.startswith(f"run {run} was started, do not start it again: ask get_result; The")
        monkeypatch.undo()
        assert (await asked.ask("get_result", run_id=str(run), wait_seconds=60))["output"] == "x"


async def test_an_agent_is_told_that_a_person_has_to_decide(store: Store) -> None:
    """Fault: it was told nothing; of a call of an entity it was told to send the answer itself."""
    async with served(store, workflows=("asks",)) as url, agent(url) as asked:
        runs = [await asked.ask("asks", what=each, wait_seconds=0) for each in ("lamps", "till")]
        lamps, till = ({"run_id": each["run_id"]} for each in runs)
        async with asyncio.timeout(30):
            while "lamps" not in (told := texts(await asked.call("get_result", **lamps))[1]):
                await asyncio.sleep(0.02)
            assert told.endswith("; it waits for a person to decide: Sell lamps?")
            while (await store.get_runs([UUID(till["run_id"])]))[UUID(till["run_id"])].wait is None:
                await asyncio.sleep(0.02)
        assert texts(await asked.call("get_result", **till))[1:] == [
            "it has not ended: ask get_result later"
        ]


async def test_runs_of_other_workflows_are_not_there(store: Store) -> None:
    from holdfast.client import Client

    async with Client(store=store, app=app) as client:
        hidden = str((await client.start(secret)).run_id)
    async with served(store) as url, agent(url) as asked:
        assert "no run" in await asked.refused("get_result", run_id=hidden)
        assert "no run" in await asked.refused("send_signal", run_id=hidden, name="x")


async def test_who_may_not_start_runs_is_refused(store: Store) -> None:
    hello = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    accept = {"Accept": "application/json, text/event-stream"}
    async with served(store) as url, httpx.AsyncClient() as http:
        for token, status in (("", 401), ("Bearer read", 403), ("Bearer none", 401)):
            headers = {**accept, "Authorization": token}
            assert (await http.post(url, json=hello, headers=headers)).status_code == status
        headers = {**accept, "Authorization": "Bearer write"}
        assert (await http.post(url, json=hello, headers=headers)).status_code == 200
        other = {**headers, "Host": "evil.example.com"}
        assert (await http.post(url, json=hello, headers=other)).status_code == 421
    async with served(store, auth=None) as url, httpx.AsyncClient() as http:
        answer = await http.post(url, json=hello, headers=headers)
        assert (answer.status_code, "app.mcp" in answer.text) == (401, True)


async def test_it_serves_again_after_it_was_closed(store: Store) -> None:
    tools = McpServer(app, auth=who, store=store, hosts=[])
    hello = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    headers = {"Accept": "application/json, text/event-stream", "Authorization": "Bearer write"}
    transport = httpx.ASGITransport(tools)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
        for _ in range(2):
            async with tools:
                answers = [http.post("/", json=hello, headers=headers) for _ in range(3)]
                assert {a.status_code for a in await asyncio.gather(*answers)} == {200}


async def test_a_first_caller_that_leaves_costs_the_next_nothing(store: Store) -> None:
    tools = McpServer(app, auth=who, store=store, hosts=[])
    hello = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    headers = {"Accept": "application/json, text/event-stream", "Authorization": "Bearer write"}
    transport, reported = httpx.ASGITransport(tools), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, about: reported.append(about))
    async with tools, httpx.AsyncClient(transport=transport, base_url="http://x") as http:
        first = asyncio.create_task(http.post("/", json=hello, headers=headers))
        while tools._serving is None:
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        assert (await http.post("/", json=hello, headers=headers)).status_code == 200
    gc.collect()
    assert not reported


@pytest.mark.parametrize(
    ("workflows", "said"),
    [(("checkuot",), "has no workflow checkuot"), (("checkout", "checkout"), "is one already")],
)
def test_workflows_that_cannot_be_tools_are_refused(workflows: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        app.mcp(workflows=workflows)


def test_names_that_tools_need_are_not_those_of_parameters() -> None:
    other = App("other")

    @other.workflow
    async def greedy(ctx: Context, wait_seconds: int) -> None: ...

    @other.workflow
    async def get_result(ctx: Context) -> None: ...

    for name in ("greedy", "get_result"):
        with pytest.raises(ConfigurationError, match=r"rename it|is one already"):
            other.mcp(workflows=[name])
