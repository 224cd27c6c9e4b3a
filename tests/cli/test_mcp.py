"""`holdfast mcp`: a client of the protocol, and a process that answers it."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import CallToolResult, TextContent

from holdfast import App, Context, RunFailed, local
from holdfast.cli.process.loading import AppReference
from tests.cli.conftest import CommandLine
from tests.cli.forks import forked_programs
from tests.cli.processes import PATIENCE_SECONDS, command, environment

READ = {
    "list_runs",
    "count_runs",
    "get_run",
    "why_run",
    "read_log",
    "read_stream",
    "read_log_lines",
    "list_alerts",
    "list_builds",
    "list_approvals",
    "list_workflows",
    "doctor",
}
WRITE = {
    "start",
    "set_attributes",
    "set_tags",
    "signal",
    "reschedule_run",
    "decide",
    "cancel",
    "retry",
}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


@pytest.fixture
def run(cli: CommandLine) -> str:
    """A run that no worker takes."""
    return cli.start("double", "7", "--key", "order-7")


@pytest.fixture(scope="module", autouse=True)
def programs() -> Iterator[None]:
    """The servers are forks of a process that has imported what they import."""
    with forked_programs("holdfast.mcp.serving"):
        yield


class Agent:
    """Calls tools."""

    def __init__(self, session: ClientSession) -> None:
        self.session = session

    async def call(self, tool: str, **arguments: object) -> CallToolResult:
        result = await self.session.call_tool(tool, arguments)
        assert isinstance(result, CallToolResult)
        return result

    async def ask(self, tool: str, **arguments: object) -> Any:
        """Return what a tool answers."""
        result = await self.call(tool, **arguments)
        assert not result.is_error, texts(result)
        return json.loads(texts(result)[0])

    async def refused(self, tool: str, **arguments: object) -> str:
        """Return why a tool refuses."""
        result = await self.call(tool, **arguments)
        assert result.is_error, texts(result)
        return texts(result)[0]


def texts(result: CallToolResult) -> list[str]:
    return [each.text for each in result.content if isinstance(each, TextContent)]


@asynccontextmanager
async def agent(url: str, *arguments: str) -> AsyncIterator[Agent]:
    program, *rest = command("--database", url, "mcp", *arguments)
    server = StdioServerParameters(command=program, args=rest, env=environment())
    async with stdio_client(server, errlog=sys.__stderr__ or sys.stderr) as (reads, writes):
        async with ClientSession(reads, writes) as session:
            await session.initialize()
            yield Agent(session)


async def test_an_agent_may_read_and_no_more(cli: CommandLine, run: str) -> None:
    async with agent(cli.url) as asked:
        tools = (await asked.session.list_tools()).tools
        assert {each.name for each in tools} == READ
        assert all(each.annotations and each.annotations.read_only_hint for each in tools)
        (head,) = (await asked.ask("list_runs", workflow=["double"], key="order-7"))["runs"]
        assert head["run_id"] == run
        assert (await asked.ask("get_run", run=run))["input"] == 7
        assert (await asked.ask("why_run", run=run))["run_id"] == run
        (entry,) = (await asked.ask("read_log", run=run))["events"]
        assert entry["idx"] == 0
        assert await asked.ask("list_approvals") == {"approvals": []}
        assert "workflows" in await asked.ask("list_workflows")
        assert "database" in {each["check"] for each in await asked.ask("doctor")}
        assert "--allow write" in await asked.refused("cancel", run=run)
        assert (await asked.ask("get_run", run=run))["state"] == "queued"


async def test_what_cannot_be_is_an_error_of_the_tool(cli: CommandLine) -> None:
    async with agent(cli.url) as asked:
        unknown = str(uuid4())
        assert unknown in await asked.refused("get_run", run=unknown)
        refused = await asked.refused("get_run", run="double/order-7")
        assert refused.endswith("by key, runs are found with list_runs: give `workflow` and `key`")
        assert "run" in await asked.refused("get_run")
        assert "limit" in await asked.refused("list_runs", limit=0)
        assert "'colour'" in await asked.refused("list_runs", colour="red")
        assert "there is no tool 'terminate'" in await asked.refused("terminate", run=unknown)
        assert await asked.ask("list_runs") == {"runs": [], "cursor": None, "searched_until": None}


async def test_an_agent_may_act_where_that_is_allowed(cli: CommandLine) -> None:
    async with agent(cli.url, "--allow", "write") as asked:
        tools = (await asked.session.list_tools()).tools
        assert {each.name for each in tools} == READ | WRITE
        hints = {each.name: each.annotations for each in tools}
        assert all(hint and hint.read_only_hint == (name in READ) for name, hint in hints.items())
        ending = {name for name, hint in hints.items() if hint and hint.destructive_hint}
        assert ending == {"cancel", "decide"}

        started = await asked.ask("start", workflow="double", input=7, idempotency_key="a")
        again = await asked.ask("start", workflow="double", input=7, idempotency_key="a")
        assert (started["created"], again["created"]) == (True, False)
        run = started["run_id"]
        assert again["run_id"] == run
        assert await asked.ask("signal", run=run, event="packed", payload=2) == {"changed": True}
        assert await asked.ask("reschedule_run", run=run, queue="slow") == {"changed": True}
        refused = await asked.refused("reschedule_run", run=run, timeout="1h")  # needs admin
        assert "no argument 'timeout'; there are run, queue, delay, start_at, no_dead" in refused
        assert "never asked for" in (await asked.refused("decide", run=run, key="x", approved=True))
        assert await asked.ask("cancel", run=run, reason="a mistake") == {"changed": True}
        retried = await asked.ask("retry", run=run)
        assert retried["created"]
        assert retried["run_id"] != run
        types = [each["type"] for each in (await asked.ask("read_log", run=run))["events"]]
        assert "SignalReceived" in types


order_app = App("orders")


@order_app.workflow
async def order(ctx: Context, name: str) -> str:
    """Order something."""
    if name == "wrong":
        raise ValueError("no such article")
    decision = await ctx.request_approval(f"Pay for {name}?")
    return f"{name} {'paid' if decision.approved else 'refused'} by {decision.by}"


async def test_an_agent_follows_runs_to_their_end(cli: CommandLine) -> None:
    async with local(order_app, cli.url) as client, agent(cli.url, "--allow", "write") as asked:
        run = (await asked.ask("start", workflow="order", input="tea"))["run_id"]
        while not (waiting := (await asked.ask("list_approvals", run=run))["approvals"]):
            await asyncio.sleep(0.05)
        why = await asked.ask("why_run", run=run)
        assert [each["do"] for each in why["actions"]] == ["decide"]
        key = waiting[0]["key"]
        refused = await asked.refused("decide", run=run, key=key, approved=True, by="the boss")
        assert "no argument 'by'" in refused
        assert await asked.ask("decide", run=run, key=key, approved=True) == {"changed": True}
        assert await client.result(run, timeout="1m") == "tea paid by mcp"
        assert "ended" in await asked.refused("signal", run=run, event="x")

        wrong = (await asked.ask("start", workflow="order", input="wrong"))["run_id"]
        with pytest.raises(RunFailed):
            await client.result(wrong, timeout="1m")
        (found,) = (await asked.ask("list_runs", status=["failed"]))["runs"]
        assert (found["run_id"], found["error"]["message"]) == (wrong, "no such article")
        assert (await asked.ask("retry", run=wrong))["created"]
        (known,) = (await asked.ask("list_workflows"))["workflows"]
        assert (known["about"], known["input_schema"]) == ("Order something.", {"type": "string"})


async def test_large_details_are_left_out_and_can_be_asked_for(cli: CommandLine, run: str) -> None:
    large = "x" * 5_000
    async with agent(cli.url, "--allow", "write") as asked:
        for each in (large, "small"):
            await asked.ask("signal", run=run, event="packed", payload=each)
        result = await asked.call("read_log", run=run)
        page, note = texts(result)
        cut = next(each for each in json.loads(page)["events"] if each["type"] == "SignalReceived")
        assert cut["details"] is None
        assert large not in page
        assert f"after={cut['idx'] - 1}" in note
        whole = await asked.ask(
            "read_log", run=run, after=cut["idx"] - 1, limit=1, clip=cut["details_bytes"]
        )
        assert large in json.dumps(whole["events"][0]["details"])
        assert whole["next"] == cut["idx"]


TILL = """\
from holdfast import App, Context

print("a text that is not of the protocol")
app = App("till")


@app.workflow
async def sell(ctx: Context, article: str, /) -> str:
    \"\"\"Sell an article.\"\"\"
    boxes = await ctx.wait_for_signal("packed", type=int)
    return f"{boxes} boxes of {article}"


@app.workflow
async def hidden(ctx: Context) -> None: ...
"""


async def test_an_agent_runs_the_workflows_of_an_app(cli: CommandLine, tmp_path: Path) -> None:
    """A typed tool for each; what the module prints is not taken for the protocol."""
    place = tmp_path / "till.py"
    place.write_text(TILL)
    till = AppReference.parse(str(place)).load()
    offered = ("--app", str(place), "--workflow", "sell")
    async with local(till, cli.url), agent(cli.url, *offered) as asked:
        tools = {each.name: each for each in (await asked.session.list_tools()).tools}
        assert tools.keys() == {"sell", "get_result", "send_signal"}
        assert tools["sell"].input_schema["properties"]["article"] == {"type": "string"}
        assert (tools["sell"].description or "").startswith("Sell an article.")
        begun = await asked.call("sell", article="tea", wait_seconds=0)
        run = (begun.structured_content or {})["run_id"]
        await asked.ask("send_signal", run_id=run, name="packed", payload=3)
        done = await asked.ask("get_result", run_id=run, wait_seconds=60)
        assert (done["status"], done["output"]) == ("completed", "3 boxes of tea")
        assert "there is no tool 'hidden'" in await asked.refused("hidden")


def test_what_is_for_an_app_needs_one(cli: CommandLine, tmp_path: Path) -> None:
    assert "give --app" in cli("mcp", "--workflow", "sell", code=2).stderr
    place = tmp_path / "till.py"
    place.write_text(TILL)
    offered = ("--app", str(place), "--workflow", "sel")
    assert "has no workflow sel; it has hidden, sell" in cli("mcp", *offered, code=2).stderr


def test_the_end_of_stdin_ends_the_process(cli: CommandLine) -> None:
    with _process(cli.url) as process:
        _initialize(process)
        out, _ = process.communicate(timeout=PATIENCE_SECONDS)
        assert (process.returncode, out) == (0, "")


def test_a_message_that_cannot_be_read_is_refused() -> None:
    """Fault: nothing was answered, and an agent that had sent half of an emoji waited for ever."""
    unread = ('{"id":2,"method":"tools/call","params":{"name":"\\ud83d"}}', '{"id":"a"}', "no JSON")
    process = subprocess.Popen(
        command("mcp", "--docs"),
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        _initialize(process)
        assert process.stdin is not None
        assert process.stdout is not None
        for text, call_id in zip(unread, (2, "a", None), strict=True):
            process.stdin.write(text.replace("{", '{"jsonrpc":"2.0",', 1) + "\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
            assert (answer["id"], answer["error"]["code"]) == (call_id, -32700)
            assert answer["error"]["message"].startswith("the message cannot be read: ")


def test_a_client_that_reads_no_more_ends_the_process(cli: CommandLine) -> None:
    """As one that was killed in a call: no traceback, also if stdin is held open by another."""
    with _process(cli.url, stderr=subprocess.PIPE) as process:
        _initialize(process)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 2, "method": "ping"}) + "\n")
        process.stdin.flush()
        assert (process.wait(PATIENCE_SECONDS), process.stderr.read()) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_process_while_stdin_is_open(
    cli: CommandLine, number: signal.Signals
) -> None:
    with _process(cli.url) as process:
        _initialize(process)
        process.send_signal(number)
        assert process.wait(PATIENCE_SECONDS) == 130


def test_without_the_package_the_error_names_the_extra(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "holdfast[mcp]" in cli("mcp", code=2).output


def _process(url: str, stderr: int | None = None) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    arguments = command("--database", url, "mcp")
    return subprocess.Popen(
        arguments, env=environment(), stdin=pipe, stdout=pipe, stderr=stderr, text=True
    )


def _initialize(process: subprocess.Popen[str]) -> None:
    """Have the process answer once: from then on it serves."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(INITIALIZE) + "\n")
    process.stdin.flush()
    answer = json.loads(process.stdout.readline())
    assert answer["result"]["serverInfo"]["name"] == "holdfast"


async def test_an_agent_reads_the_documentation_without_a_database() -> None:
    async with agent("postgresql://nobody@127.0.0.1:1/none", "--docs") as asked:
        tools = (await asked.session.list_tools()).tools
        assert {each.name for each in tools} == {"search_docs", "read_docs"}
        assert all(each.annotations and each.annotations.read_only_hint for each in tools)
        [first] = await asked.ask("search_docs", words="retry a step", limit=1)
        assert first["page"] == "howto/retries-and-errors"
        page = texts(await asked.call("read_docs", page=first["page"]))[0]
        assert page.startswith("# Retry steps")
        assert "<!--" not in page
        assert texts(await asked.call("read_docs"))[0].startswith("---\nname: holdfast\n")
        assert "did you mean howto/queues" in await asked.refused("read_docs", page="howto/queuse")
        assert "limit" in await asked.refused("search_docs", words="a", limit=0)
        assert "colour" in await asked.refused("search_docs", words="a", colour="red")
        assert "there is no tool 'start'" in await asked.refused("start", workflow="double")


def test_there_is_nothing_to_allow_in_the_documentation(cli: CommandLine) -> None:
    assert "leave out --allow" in cli("mcp", "--docs", "--allow", "write", code=2).stderr
