"""The first screen of the README: short, and its figures and promises are true."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks.picture import LINK, write_picture
from benchmarks.report import write_document

from holdfast import App, Context, RunFailed
from holdfast.testing import Environment
from tests.docs.blocks import ROOT

SVG = "{http://www.w3.org/2000/svg}"
README = (ROOT / "README.md").read_text(encoding="utf-8")


def rows(page: str) -> dict[str, list[str]]:
    """Return the other cells of each row of a page's first table of workloads, by the first."""
    table = page.partition("| | workload |")[2].partition("\n\n")[0]
    each = [line.strip("| ").split("|") for line in table.splitlines()[2:]]
    return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in each}


def test_it_is_short_and_begins_with_the_two_commands() -> None:
    lines = README.splitlines()
    assert len(lines) < 150
    beginning = "\n".join(lines[:8])
    assert "`make demo`" in beginning
    assert "`make test`" in beginning


def test_its_figures_are_those_that_were_measured_and_some_are_losses() -> None:
    shown = rows(README)
    measured = rows((ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8"))
    assert {name: measured[name][: len(cells)] for name, cells in shown.items()} == shown
    ratios = [float(measured[name][6].rstrip("x")) for name in shown]
    assert len([ratio for ratio in ratios if ratio > 1]) == 3
    assert len([ratio for ratio in ratios if ratio < 1]) == 2


def test_its_picture_shows_the_demo_and_runs_nothing() -> None:
    picture = ElementTree.parse(ROOT / "docs" / "images" / "demo.svg").getroot()
    lines = ["".join(each.itertext()) for each in picture.iter(f"{SVG}text")]
    assert lines[0].endswith("holdfast demo")
    assert any("SIGKILL: the worker dies" in line for line in lines)
    assert "every effect happened once, as recorded;" in lines
    tags = {each.tag.removeprefix(SVG) for each in picture.iter()}
    assert tags == {"svg", "title", "style", "rect", "clipPath", "g", "text", "tspan"}


async def test_an_exit_stack_undoes_in_reverse_order() -> None:
    app, done = App("trip"), list[str]()

    @app.step
    async def call(what: str) -> None:
        if what == "book a car":
            raise ValueError("no car")
        done.append(what)

    @app.workflow
    async def trip(ctx: Context) -> None:
        async with AsyncExitStack() as undo:
            for what in ("a flight", "a hotel", "a car"):
                await call(f"book {what}")
                undo.push_async_callback(call, f"cancel {what}")
                await asyncio.sleep(3600)
            undo.pop_all()

    async with Environment(app) as env:
        with pytest.raises(RunFailed):
            await env.run(trip)
    assert done == ["book a flight", "book a hotel", "cancel a hotel", "cancel a flight"]


async def test_siblings_of_a_task_that_fails_are_cancelled() -> None:
    app, done = App("group"), list[str]()

    @app.step
    async def note(what: str) -> None:
        done.append(what)

    @app.workflow
    async def together(ctx: Context) -> None:
        async def slow() -> None:
            try:
                await asyncio.sleep(24 * 3600)
            finally:
                await note("cleaned up")

        async def fails() -> None:
            await asyncio.sleep(60)
            raise ValueError("it failed")

        async with asyncio.TaskGroup() as group:
            group.create_task(slow())
            group.create_task(fails())

    async with Environment(app) as env:
        began = env.now
        with pytest.raises(RunFailed):
            await env.run(together)
        assert (env.now - began).total_seconds() < 3600
    assert done == ["cleaned up"]


def test_the_picture_of_the_results_is_that_of_their_figures(tmp_path: Path) -> None:
    """To make it again: `benchmarks.picture.write_picture`, as `make bench` does."""
    made, folder = tmp_path / "made.svg", ROOT / "benchmarks"
    write_picture(json.loads((folder / "results.json").read_text(encoding="utf-8")), made)
    assert made.read_text(encoding="utf-8") == (folder / LINK).read_text(encoding="utf-8")


def test_a_document_somewhere_else_leaves_the_picture_alone(tmp_path: Path) -> None:
    """Fault: a run of some workloads with --document replaced it."""
    folder, document = ROOT / "benchmarks", tmp_path / "some.md"
    figures = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    some = tmp_path / "some.json"
    some.write_text(json.dumps({"about": figures["about"], "W1": figures["W1"]}))
    before = (folder / LINK).read_bytes()
    write_document(some, document)
    assert "2,000 runs of 1 step" in document.read_text(encoding="utf-8")
    assert (folder / LINK).read_bytes() == before
