"""The reference names what there is, and nothing else."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import cast
from uuid import uuid4

import click
import msgspec
import pytest

import holdfast as package
from holdfast import (
    App,
    Client,
    Context,
    Retry,
    client,
    core,
    current_activity,
    definitions,
    errors,
    logs,
    testing,
)
from holdfast.cli.root import holdfast
from holdfast.client.approvals import Approvals
from holdfast.client.filters import STATES, RunFilters
from holdfast.client.forking import ForkOptions
from holdfast.definitions.flow_steps import FlowMapOptions, RunMapOptions
from holdfast.definitions.schedules import AppScheduleOptions, MessageScheduleOptions
from holdfast.definitions.start_rules import RuleOptions
from holdfast.definitions.starts import StartOptions
from holdfast.events import TYPES
from holdfast.runtime.code.children import ChildOptions
from holdfast.server.api.openapi import describe
from holdfast.server.api.table import OPERATIONS
from holdfast.store.memory import MemoryStore
from holdfast.testing import Environment
from holdfast.worker import WorkerOptions
from tests.docs import api_reference, cli_reference, rest_reference
from tests.docs.api_reference import read
from tests.docs.blocks import PAGES, ROOT, read_blocks

REFERENCE = ROOT / "docs" / "reference"
app = App("reference")


@app.step(retry=Retry(attempts=2, base="5s", jitter=0))
async def fails() -> None:
    raise ValueError("always")


@app.step
async def works() -> int:
    return 7


@app.step(timeout="1ms", retry=Retry.NEVER)
async def sleeps() -> None:
    await asyncio.sleep(60)


@app.workflow
async def everything(ctx: Context, happy: bool) -> int:
    """Write each type of event that code can bring about."""
    ctx.set_value("progress", 1)
    paid, other = ctx.webhook("paid"), ctx.webhook("other")
    other.close()
    ctx.set_attributes(customer="acme")
    await works()
    for step in (fails, sleeps):
        try:
            await step()
        except errors.StepFailed:
            ctx.set_value("progress", 2)
    ctx.subscribe("a.#")
    await ctx.stream("progress").write(1)
    await ctx.wait_for_signal("go")
    await paid.received()
    await asyncio.sleep(1)
    if not happy:
        raise ValueError("unhappy")
    return 7


def rows(page: str, title: str = "") -> list[list[str]]:
    """Give the cells of the first table of a page, or of its section of that title."""
    text = (
        (REFERENCE / page)
        .read_text(encoding="utf-8")
        .split(f"\n## {title}" if title else "\n", 1)[1]
    )
    table = re.search(r"^\|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert table is not None, f"{page} has no table {title}"
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table[1].splitlines()]


def code(cell: str) -> list[str]:
    """Give what stands in backticks."""
    return re.findall(r"`([^`]+)`", cell)


def options_of(function: Callable[..., object], *others: str) -> set[str]:
    """Give the names of a method's options: what it takes besides `others`."""
    return set(inspect.signature(function).parameters) - {"self", *others}


def words(pages: dict[str, str]) -> dict[str, list[str]]:
    """Return the words of each page."""
    return {name: text.split() for name, text in pages.items()}


def test_the_cli_pages_are_what_the_commands_say() -> None:
    """Words are compared: click's releases break lines at other places."""
    assert words(read(cli_reference.FOLDER)) == words(cli_reference.render()), (
        "run `python -m tests.docs.cli_reference`"
    )


def test_the_api_pages_are_what_the_docstrings_say() -> None:
    assert words(read(api_reference.FOLDER)) == words(api_reference.render()), (
        "run `python -m tests.docs.api_reference`"
    )


def test_signatures_of_the_api_reference_are_python() -> None:
    """Fault: texts that are defaults had no quotes, and parameters with the name `cls` went."""
    pages = api_reference.render().values()
    found = [
        each
        for page in pages
        for each in re.findall(r"^#+ (\S+)\n\n```py\n(.+?)\n```", page, re.S | re.M)
    ]
    assert len(found) > 100
    for name, signature in found:
        plain = name.rpartition(".")[2]
        text = re.sub(r"^(async )?[\w.]+\(", rf"\1def {plain}(", signature.replace("…", "..."))
        ast.parse(f"{text}: ...")
    [entity] = (signature for name, signature in found if name == "Context.entity")
    assert entity.startswith("entity(cls: type[E], key: str")


def test_types_of_the_rest_api_have_names_of_their_own() -> None:
    """Fault: two of one name had the paths of their modules before it, also the older one."""
    names = describe(OPERATIONS)["components"]["schemas"]
    modules = {name.rpartition(".")[0] for name in names if name.rpartition(".")[2] != "StepShape"}
    assert modules == {""}


def test_the_rest_page_is_what_the_operations_say() -> None:
    page = rest_reference.PAGE.read_text(encoding="utf-8")
    assert page.split() == rest_reference.render().split(), (
        "run `python -m tests.docs.rest_reference`"
    )


@pytest.mark.parametrize(
    "module", [package, client, core, definitions, logs, testing], ids=lambda m: m.__name__
)
def test_each_public_name_has_its_place(module: ModuleType) -> None:
    pages = "\n".join(path.read_text(encoding="utf-8") for path in REFERENCE.rglob("*.md"))
    public = {name for name in module.__all__ if not name.startswith("_")}
    assert {name for name in public if not re.search(rf"\b{name}\b", pages)} == set()


def test_each_error_has_its_row() -> None:
    classes = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, BaseException)
    }
    assert {row[0] for row in rows("errors.md")} == classes


@pytest.mark.parametrize(
    ("title", "names"),
    [
        ("`App(", set(inspect.signature(App).parameters) - {"name"}),
        (
            "`@app.workflow",
            options_of(App.workflow, "fn", "rules") | {*RuleOptions.__annotations__},
        ),
        ("`@app.step", (set(inspect.signature(App.step).parameters) - {"self", "fn"}) | {"id"}),
        ("`@app.activity", options_of(App.activity, "fn")),
        ("`app.flow(", options_of(App.flow, "name")),
        ("`app.queue(", options_of(App.queue, "name")),
        (
            "`@app.schedule(",
            {*AppScheduleOptions.__annotations__, *MessageScheduleOptions.__annotations__}
            | {"name", "input", "topic", "message_queue"},
        ),
        ("`@flow.step", {*FlowMapOptions.__annotations__}),
        ("`flow.run_step(", {*RunMapOptions.__annotations__, "of", "over"}),
        ("`ctx.activity(", options_of(Context.activity, "name", "args")),
        ("`ctx.child(", {*ChildOptions.__annotations__, "type"}),
        ("`ctx.request_approval(", options_of(Context.request_approval, "title")),
        ("`ctx.handle_update(", options_of(Context.handle_update, "name", "handler")),
        ("`client.runs.fork(", {*ForkOptions.__annotations__}),
        ("`client.approvals.decide(", options_of(Approvals.decide, "run", "key", "approved")),
        ("`client.update(", options_of(Client.update, "run", "name", "payload")),
        ("`Retry(", set(inspect.signature(Retry).parameters)),
        ("`client.start(", {*StartOptions.__annotations__}),
        ("`client.runs.list(", {*RunFilters.__annotations__}),
        ("`WorkerOptions(", set(WorkerOptions.__struct_fields__)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_option_has_its_row(title: str, names: set[str]) -> None:
    assert {name for row in rows("options.md", title) for name in code(row[0])} == names


def test_the_defaults_of_a_worker_are_the_code_s() -> None:
    shown = {code(row[0])[0]: code(row[1]) or [row[1]] for row in rows("options.md", "`WorkerO")}
    defaults = msgspec.structs.asdict(WorkerOptions())
    assert {name: cells[0] for name, cells in shown.items()} == {
        name: str(value) for name, value in defaults.items()
    }


def test_the_states_are_the_code_s() -> None:
    found = {code(row[0])[0]: row[1] for row in rows("options.md", "`client.runs.list(")}
    assert found["states"].split(", ") == list(STATES)


def test_each_environment_variable_has_its_row() -> None:
    used = set[str]()
    for path in (ROOT / "src").rglob("*.py"):
        used |= set(re.findall(r"[\"$](HOLDFAST_[A-Z_]+)", path.read_text(encoding="utf-8")))
    shown = {name for row in rows("options.md", "Environment variables") for name in code(row[0])}
    assert {name for name in shown if name.startswith("HOLDFAST")} == used


def test_each_type_of_event_has_its_row() -> None:
    """S3. What the code and the SQL may write is documented, and the other way round."""
    types = set(TYPES)
    for path in (ROOT / "src/holdfast/sql/functions").rglob("*.sql"):
        types |= set(re.findall(r"'(W(?:ork\w+))'", path.read_text(encoding="utf-8")))
    page = (REFERENCE / "events.md").read_text(encoding="utf-8")
    shown = {row[0] for row in rows("events.md")}
    assert shown <= types
    assert {each for each in types if each not in page} == set()
    assert types == shown


@app.activity(queue="bench", retry=Retry(attempts=2, base="5s", jitter=0))
async def breaks(times: int) -> int:
    if current_activity().attempt <= times:
        raise ValueError("broken")
    return times


@app.workflow
async def divide(ctx: Context, number: int) -> int:
    return 10 // number


@app.workflow
async def idle(ctx: Context) -> None:
    await ctx.wait_for_signal("never")


@app.workflow
async def remote(ctx: Context, round: int) -> int:
    """Write each type of event that comes of work for others."""
    ctx.patched("new-path")
    ctx.handle_update("add", lambda number: 10 // number, validate=[7, 5, 1, 0].index)
    if round:
        await ctx.request_approval("Go on?", timeout="1d")
        ctx.continue_as_new(0)
    await breaks(1)
    for call in (breaks(2), divide(5), divide(0)):
        try:
            await call
        except errors.CallFailed:
            ctx.set_value("progress", 1)
    for forgotten in (ctx.activity("nobody-has-it"), idle(), ctx.request_approval("Go?")):
        try:
            await asyncio.wait_for(forgotten, 5)
        except TimeoutError:
            ctx.set_value("progress", 2)
    handle = await ctx.start_child(idle, parent_close="terminate")
    ctx.signal_run(handle.run_id, "nothing-waits-for-it")
    return await ctx.wait_for_signal("go", type=int)


async def work_for_others(env: Environment) -> None:
    """Let a run do all of `remote`, as those that it needs for it."""
    handle = await env.client.start(remote, 1)
    while not await handle.approvals():
        await env.wait_until_idle()
    await handle.pause("lunch")
    await handle.resume()
    await env.client.approvals.decide(
        handle.run_id, "approve", True, by="ann", decision_id="mail-1"
    )
    while await handle.status() != "continued":
        await env.wait_until_idle()
    for number in (5, 0, 9):
        await asyncio.gather(handle.update("add", number), return_exceptions=True)
    await handle.signal("go", 1)
    assert await env.result(handle) == 1
    await env.client.runs.fork(handle.run_id)


async def logged(store: MemoryStore) -> Iterator[tuple[str, object]]:
    found = await store.recent_log(since=0, limit=10_000, clip=1 << 30)
    events = [entry.event for _, entry in found]
    return ((each.type, json.loads(each.details or "null")) for each in events)


async def test_details_have_the_fields_that_the_page_gives() -> None:
    """S3. The shapes of runs of workflows; those of flows are looked at with their tests."""
    async with Environment(app) as env:
        handles = [await env.client.start(everything, happy) for happy in (True, False)]
        for handle in handles:
            await handle.signal("go", {"boxes": 2})
            await env.wait_until_idle()
            [paid] = await env.client.webhooks.list(handle.run_id)
            await env.post(paid.url)
            await asyncio.gather(env.result(handle), return_exceptions=True)
        started = await env.client.start(everything, True)
        await env.wait_until_idle()
        await started.cancel("enough")
        await asyncio.gather(env.result(started), return_exceptions=True)
        await (await env.client.start(everything, True, delay="1d")).terminate("a mistake")
        late = await env.client.start(everything, True, timeout="1d", run_id=uuid4())
        await env.client.runs.reschedule(late.run_id, timeout="2d", reason="slow")
        await asyncio.gather(env.result(late), return_exceptions=True)
        await work_for_others(env)
        found = list(await logged(env.store))

    fields = {row[0]: re.findall(r"`(\w+)(\?)?`", row[2]) for row in rows("events.md")}
    payloads = {"WorkflowStarted", "WorkflowCompleted"}
    for kind, value in found:
        if kind in payloads or kind == "WorkflowFailed":
            continue
        shown = {name: not optional for name, optional in fields[kind]}
        given = set(cast("dict[str, object]", value)) if isinstance(value, dict) else set[str]()
        assert given - {"python", "caught"} <= set(shown), kind
        assert {name for name, needed in shown.items() if needed} <= given, kind
    of_flows = {name for name in fields if name.startswith("FlowStep")}
    assert fields.keys() - {kind for kind, _ in found} - of_flows == {"WorkerLost"}


def test_each_function_for_callers_is_there() -> None:
    page = (REFERENCE / "sql.md").read_text(encoding="utf-8")
    source = "".join(
        path.read_text(encoding="utf-8")
        for path in sorted(Path(ROOT / "src/holdfast/sql/functions").rglob("*.sql"))
    )
    defined = set(re.findall(r"create or replace function holdfast\.([a-z]\w*)", source))
    named = set(re.findall(r"(?:holdfast\.|`)([a-z]\w*)\(", page))
    assert named <= defined
    assert "start_run" in named


def commands(page: Path) -> Iterator[list[str]]:
    """Give the words of each command of ours that a page has in a block or between backticks."""
    source = page.read_text(encoding="utf-8")
    shown = [block.text for block in read_blocks(page) if block.language in ("console", "text")]
    prose = re.sub(r"^```.*?^```", "", source, flags=re.MULTILINE | re.DOTALL)
    lines = "\n".join(shown).replace("\\\n", " ").splitlines()
    for line in [*lines, *re.findall(r"`([^`]+)`", prose)]:
        if found := re.match(r"holdfast ([^|#]+)", line):
            yield found[1].split()


@pytest.mark.parametrize("page", [each for each in PAGES if each.parent.name != "cli"], ids=str)
def test_each_command_and_option_of_a_page_exists(page: Path) -> None:
    for words in commands(page):
        command: click.Command = holdfast
        path = [command]
        for word in words:
            if isinstance(command, click.Group):
                command = command.get_command(click.Context(command), word) or command
                path.append(command)
        parameters = [parameter for each in path for parameter in each.params]
        options = {name for each in parameters for name in (*each.opts, *each.secondary_opts)}
        given = set(re.findall(r"(?<!\S)--[\w-]+", " ".join(words)))
        assert given <= options | {"--help"}, " ".join(words)
        assert command is not holdfast or words[0].startswith("-"), " ".join(words)
