"""The reference names what there is, and nothing else."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import cast
from uuid import uuid4

import msgspec
import pytest

from holdfast import App, Context, Retry, errors
from holdfast.client.filters import STATES, RunFilters
from holdfast.client.starting import StartOptions
from holdfast.runtime import details
from holdfast.store.memory import MemoryStore
from holdfast.testing import Environment
from holdfast.worker import WorkerOptions
from tests.docs import cli_reference
from tests.docs.blocks import ROOT

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
    ctx.set("progress", 1)
    await works()
    for step in (fails, sleeps):
        try:
            await step()
        except errors.StepFailed:
            ctx.set("progress", 2)
    await ctx.wait_for_signal("go")
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


def test_the_cli_page_is_what_the_commands_say() -> None:
    """Words are compared: click's releases break lines at other places."""
    page = cli_reference.PAGE.read_text(encoding="utf-8")
    assert page.split() == cli_reference.render().split(), (
        "run `python -m tests.docs.cli_reference`"
    )


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
        ("`@app.workflow", set(inspect.signature(App.workflow).parameters) - {"self", "fn"}),
        ("`@app.step", (set(inspect.signature(App.step).parameters) - {"self", "fn"}) | {"id"}),
        ("`Retry(", set(inspect.signature(Retry).parameters)),
        ("`client.start(", {*StartOptions.__annotations__}),
        ("`client.list(", {*RunFilters.__annotations__}),
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
    found = {code(row[0])[0]: row[1] for row in rows("options.md", "`client.list(")}
    assert found["states"].split(", ") == list(STATES)


def test_each_environment_variable_has_its_row() -> None:
    used = set[str]()
    for path in (ROOT / "src").rglob("*.py"):
        used |= set(re.findall(r"[\"$](HOLDFAST_[A-Z_]+)", path.read_text(encoding="utf-8")))
    shown = {name for row in rows("options.md", "Environment variables") for name in code(row[0])}
    assert {name for name in shown if name.startswith("HOLDFAST")} == used


def test_each_type_of_event_has_its_row() -> None:
    """S3. What the code and the SQL may write is documented, and the other way round."""
    types = {value for value in vars(details).values() if isinstance(value, str)}
    types = {each for each in types | details.TERMINAL if re.fullmatch(r"[A-Z]\w+[a-z]", each)}
    for path in (ROOT / "src/holdfast/sql/functions").glob("*.sql"):
        types |= set(re.findall(r"'(W(?:ork\w+))'", path.read_text(encoding="utf-8")))
    page = (REFERENCE / "events.md").read_text(encoding="utf-8")
    shown = {row[0] for row in rows("events.md")}
    assert shown <= types
    assert {each for each in types if each not in page} == set()
    assert types - shown == {"WorkflowContinuedAsNew"}


async def logged(store: MemoryStore) -> Iterator[tuple[str, object]]:
    events = await store.recent_events(since=0, limit=10_000)
    return ((each.event.type, json.loads(each.event.details or "null")) for each in events)


async def test_details_have_the_fields_that_the_page_gives() -> None:
    """S3. The shapes of a run that brings about every type but one."""
    async with Environment(app) as env:
        handles = [await env.client.start(everything, happy) for happy in (True, False)]
        for handle in handles:
            await handle.signal("go", {"boxes": 2})
            await asyncio.gather(env.result(handle), return_exceptions=True)
        started = await env.client.start(everything, True)
        await env.settle()
        await started.cancel("enough")
        await asyncio.gather(env.result(started), return_exceptions=True)
        await (await env.client.start(everything, True, delay="1d")).terminate("a mistake")
        late = await env.client.start(everything, True, timeout="1d", run_id=uuid4())
        await asyncio.gather(env.result(late), return_exceptions=True)
        found = list(await logged(env.store))

    fields = {row[0]: re.findall(r"`(\w+)(\?)?`", row[2]) for row in rows("events.md")}
    payloads = {"WorkflowStarted", "WorkflowCompleted"}
    for kind, value in found:
        if kind in payloads or kind == "WorkflowFailed":
            continue
        shown = {name: not optional for name, optional in fields[kind]}
        given = set(cast("dict[str, object]", value)) if isinstance(value, dict) else set[str]()
        assert given - {"python"} <= set(shown), kind
        assert {name for name, needed in shown.items() if needed} <= given, kind
    assert fields.keys() - {kind for kind, _ in found} == {"WorkerLost", "WorkflowTaskYielded"}


def test_each_function_for_callers_is_there() -> None:
    page = (REFERENCE / "sql.md").read_text(encoding="utf-8")
    source = "".join(
        path.read_text(encoding="utf-8")
        for path in sorted(Path(ROOT / "src/holdfast/sql/functions").glob("*.sql"))
    )
    defined = set(re.findall(r"create or replace function holdfast\.([a-z]\w*)", source))
    named = set(re.findall(r"(?:holdfast\.|`)([a-z]\w*)\(", page))
    assert named <= defined
    assert "start_run" in named
