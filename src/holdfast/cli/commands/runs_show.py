"""`holdfast runs show` and `holdfast runs why`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from holdfast.cli.answers import Answer
from holdfast.cli.finding import find_run
from holdfast.cli.framework import command, option
from holdfast.cli.render.console import console, write_traceback
from holdfast.cli.render.hints import command_of, with_database

if TYPE_CHECKING:
    from uuid import UUID

    from rich.tree import Tree

    from holdfast.cli.connecting import Link
    from holdfast.insight.flow_progress import StepProgress
    from holdfast.insight.spans import Span
    from holdfast.insight.tree import Children
    from holdfast.insight.why import Explanation
    from holdfast.types import JSON, LoggedEvent, RunRecord


@command("show", examples=("holdfast runs show checkout/order-7", "holdfast runs show 3f9a --json"))
@click.argument("reference", metavar="RUN")
@option("--all", "Show each step of a long run on its own line.", name="whole")
async def show(link: Link, reference: str, whole: bool) -> Answer:
    """Show a run: what it is, what it has set, its timeline, and the runs it started.

    The run of a flow has its steps too: each with its state, after those that it depends on. In a
    timeline of more than 60 lines, similar steps that are done share one line.

    \b
    ✓ step done    ✗ step failed   ↻ step being tried again   ☠ worker lost
    ⇢ activity     ↳ child run     ☐ approval                 ⇄ update
    ◷ timer        ✉ signal        = value                    ‖ pause
    Δ patch        ⊘ cancel        ⑂ fork                     ■ end

    \b
    Steps of flows:
    ✓ completed    ✗ failed        ↻ before the next attempt  ↷ skipped
    ▶ running      ○ queued        ◷ delayed                  · not begun
    ■ under way when the run ended
    """
    from holdfast.cli.render.flows import step_object
    from holdfast.cli.render.runs import event_object, run_object

    picture = await _look(link, reference)
    events = [event_object(entry) for entry in picture.log]
    children = _tree_objects(picture.children)
    told = {**run_object(picture.run), "values": picture.values, "log": events}
    told["children"] = children
    if picture.run.kind == "flow":
        told["steps"] = [step_object(step) for step in picture.steps]
    return Answer(told, lambda: _write(picture, whole))


@dataclass(frozen=True, slots=True)
class _Picture:
    """Everything that is shown of a run."""

    run: RunRecord
    log: list[LoggedEvent]
    values: Mapping[str, JSON]
    spans: list[Span]
    children: Children
    steps: list[StepProgress]
    now: int


async def _look(link: Link, reference: str) -> _Picture:
    from holdfast.insight.flow_progress import progress_of
    from holdfast.insight.timeline import read_run_spans, read_starts, read_steps, with_starts
    from holdfast.insight.tree import read_children
    from holdfast.retention.viewing import archived_store

    run = await find_run(link.client, reference)
    log = await link.client.runs.log(run.run_id)
    events = [entry.event for entry in log]
    store = link.store
    if run.archive is not None:
        store = await archived_store(await link.client.archive.get(run.run_id), link.store)
    states = await read_steps(store, run)
    spans = read_run_spans(run, events, states)
    spans = with_starts(spans, await read_starts(store, run, spans))
    children = await read_children(link.store, spans)
    values = await link.client.runs.values(run.run_id)
    tasks = await link.store.open_step_tasks(run.run_id) if states else []
    steps = progress_of(states, tasks, ended=run.status != "running")
    return _Picture(run, log, values, spans, children, steps, await link.store.now())


def _write(picture: _Picture, whole: bool) -> None:
    from holdfast.cli.render.flows import steps_table
    from holdfast.cli.render.runs import summary
    from holdfast.cli.render.timeline import timeline
    from holdfast.insight.spans import read_json, traceback_text

    run, output = picture.run, console()
    output.print(summary(run, picture.values, picture.now))
    if picture.steps:
        output.print()
        output.print(steps_table(picture.steps, picture.now))
    if picture.spans:
        output.print()
        output.print(
            timeline(picture.spans, run.created_at, run.completed_at, picture.now, whole=whole)
        )
    stuck = run.wait.stuck or "" if run.wait is not None else ""
    if found := traceback_text(read_json(run.error)) or stuck.partition("\n")[2]:
        output.print()
        write_traceback(output, found)
    if picture.children.shown:
        output.print()
        output.print(_tree(run.run_id, picture.children), soft_wrap=True)


@command("why", examples=("holdfast runs why checkout/order-7",))
@click.argument("reference", metavar="RUN")
async def why(link: Link, reference: str) -> Answer:
    """Say what a run does or waits for, and what would move it.

    Each activity, child run and approval that it waits for is explained. `holdfast runs stack`
    shows the lines at which its code stands.
    """
    explanation = await link.client.why((await find_run(link.client, reference)).run_id)
    fields = ("run_id", "state", "because", "details", "traceback")
    told = {name: getattr(explanation, name) for name in fields}
    commands = [with_database(command_of(each)) for each in explanation.actions]
    return Answer({**told, "commands": commands}, lambda: _write_explanation(explanation))


def _write_explanation(explanation: Explanation) -> None:
    """Write the explanation, its details, and the commands that would move the run."""
    from rich.text import Text

    from holdfast.cli.render.runs import STYLES

    output = console()
    state = Text(explanation.state.replace("_", " "), STYLES.get(explanation.state, ""))
    output.print(state.append(": ", "").append(explanation.because, "default"), soft_wrap=True)
    for detail in explanation.details:
        output.print(Text(f"  {detail}"), soft_wrap=True)
    write_traceback(output, explanation.traceback)
    if explanation.actions:
        output.print(Text("what would move it:", "dim"))
        for action in explanation.actions:
            command = with_database(command_of(action))
            output.print(Text(f"  {command}", "bold"), soft_wrap=True)


def _tree(run_id: UUID, children: Children) -> Tree:
    """Return the children of a run, and theirs, as a tree."""
    from rich.text import Text
    from rich.tree import Tree

    tree = Tree(Text("children", "dim"), guide_style="dim")
    _grow(tree, run_id, children)
    return tree


def _tree_objects(children: Children) -> list[dict[str, object]]:
    """Return children for JSON: each a run, with its own children."""
    from holdfast.cli.render.runs import run_object

    return [
        {**run_object(each.run), "children": _tree_objects(each.children)}
        for each in children.shown
    ]


def _grow(tree: Tree, run_id: UUID, children: Children) -> None:
    from rich.text import Text

    from holdfast.cli.render.runs import state_text

    for each in children.shown:
        line = state_text(each.run).append(f" {each.key} ", "default")
        line.append(f"{each.run.handler} {each.run.run_id}", "dim")
        _grow(tree.add(line), each.run.run_id, each.children)
    if children.more:
        text = with_database(f"… {children.more:,} more: holdfast runs list --parent {run_id}")
        tree.add(Text(text, "dim"))
