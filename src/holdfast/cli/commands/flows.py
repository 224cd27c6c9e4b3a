"""`holdfast flows`: compile flows, look at their shapes, and delete them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.answers import Answer, answer, call
from holdfast.cli.framework import Group, command, option, sources
from holdfast.cli.inputs import app_argument, confirm
from holdfast.cli.render.console import console, numbers, plain, table, whole
from holdfast.insight.wording import ago, several

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from holdfast.cli.connecting import Link
    from holdfast.compiling import CompiledFlow
    from holdfast.types import FlowInfo, FlowShape, StepShape


@click.group(
    "flows",
    cls=Group,
    sources=sources(__name__, "list:list_flows", "show", "compile:compile_app", "delete"),
    examples=(
        "holdfast flows list",
        "holdfast flows show analyze_website",
        "holdfast flows compile shop:app --check",
    ),
)
def flows() -> None:
    """List flows, draw them, compile them, and delete them.

    A flow is a graph of steps that the database drives. Its shape is in the database; each run
    keeps the version that it started with. Runs of flows are started with `holdfast start`, and
    are under `holdfast runs` as those of workflows.
    """


@command("list", examples=("holdfast flows list", "holdfast flows list --json"))
async def list_flows(link: Link) -> Answer:
    """List every version of every flow in the database.

    Of each it says how many runs have not ended, and if it was defined in code or in SQL.
    """
    found, now = await link.client.flows.list(), await link.store.now()
    objects = [plain(each) for each in found]
    return Answer(objects, lambda: _table(found, now), none=f"no flows in {link.database}")


@command(
    "show",
    examples=(
        "holdfast flows show analyze_website",
        "holdfast flows show web/analyze_website --flow-version 1",
        "holdfast flows show analyze_website --mermaid > flow.mmd",
    ),
)
@click.argument("name")
@option("--flow-version", "The flow's version. Default: the newest.", type=click.IntRange(1))
@option("--mermaid", "Write a Mermaid flowchart, for Markdown.")
async def show(link: Link, name: str, flow_version: int | None, mermaid: bool) -> Answer:
    """Draw the flow NAME: its steps, in layers, and what each depends on.

    `[]` marks a map: a task for each element of what it maps over. After a step are the options
    that differ from the flow's. Exit code 4 if the database has no such flow.
    """
    from holdfast.flows import draw, to_mermaid

    shape = await link.client.flows.get(name, flow_version)

    def write() -> None:
        if mermaid:
            click.echo(to_mermaid(shape), nl=False)
            return
        notes = {step.slug: _options(step) for step in shape.steps}
        output = console()
        output.print(f"{shape.handler}  {_flow_options(shape)}", soft_wrap=True)
        for line in draw(shape, {slug: note for slug, note in notes.items() if note}):
            output.print(line, soft_wrap=True, markup=False)

    return Answer({**plain(shape), "steps": [_step_object(step) for step in shape.steps]}, write)


@command(
    "compile",
    examples=(
        "holdfast flows compile shop:app",
        "holdfast flows compile shop.py --check    # in CI: exit code 1 if anything differs",
        "holdfast flows compile shop:app --replace",
    ),
)
@app_argument
@option("--check", "Say what differs, and change nothing.")
@option("--replace", "Replace shapes that differ: their runs that have not ended are terminated.")
def compile_app(app_reference: str, check: bool, replace: bool) -> None:
    """Give the database the shapes of an app's flows, as its workers do when they start.

    A shape that the database has in another form is refused: runs keep the shape that they
    started with, so give the changed flow a new version. Exit code 2 if one was refused; with
    --check, exit code 1 if one differs or is missing.
    """
    from holdfast.cli.process.loading import AppReference

    if check and replace:
        raise click.UsageError("give either --check or --replace, not both")
    app = AppReference.parse(app_reference).load()

    async def work(link: Link) -> Answer:
        group = link.client.flows
        found = await (group.check(app) if check else group.compile(app, replace=replace))
        is_same = all(each.status not in ("missing", "different") for each in found)
        none = f"app {app.name} has no flows"
        return Answer(found, lambda: _report(found), none=none, ok=is_same)

    answer(work, make=not check)


@command(
    "delete",
    examples=(
        "holdfast flows delete analyze_website",
        "holdfast flows delete web/analyze_website --terminate --yes",
    ),
)
@click.argument("name")
@option("--terminate", "Terminate its runs that have not ended.")
@option("--force", "Delete it although other flows or schedules run it.")
@option("--yes", "Do not ask.")
def delete(name: str, terminate: bool, force: bool, yes: bool) -> None:
    """Delete all versions of the flow NAME, with all its runs.

    Their logs and outputs are deleted too. It is refused while runs have not ended, unless
    --terminate is given, and while steps of other flows or schedules run it, unless --force is
    given (exit code 1). A worker that has the flow compiles it again when it
    starts. Exit code 4 if the database has no such flow.
    """
    full_name = call(lambda link: _full_name(link, name))
    if not yes:
        confirm(f"delete flow {full_name} with all its runs?")

    async def work(link: Link) -> Answer:
        runs = await link.client.flows.delete(full_name, terminate=terminate, force=force)
        text = f"flow {full_name} deleted, with {several(runs, 'run')}"
        return Answer({"flow": full_name, "runs": runs}, text)

    answer(work)


async def _full_name(link: Link, name: str) -> str:
    return (await link.client.flows.get(name)).name


def _step_object(step: StepShape) -> dict[str, object]:
    from holdfast.codec import raw

    return plain(step) | {"required": raw(step.required), "forbidden": raw(step.forbidden)}


def _report(flows: Sequence[CompiledFlow]) -> None:
    for flow in flows:
        words = {
            "verified": "the database has the same",
            "compiled": "compiled",
            "replaced": f"replaced; {several(flow.ended, 'run')} terminated",
            "missing": "the database does not have it",
            "different": "the database has another shape",
        }
        click.echo(f"{flow.name}@{flow.version}: {words[flow.status]}")
        for line in flow.differences:
            click.echo(f"  {line}")


def _table(found: Sequence[FlowInfo], now: int) -> Table:
    counts = numbers("version", "steps", "open runs")
    shown = table(whole("flow"), counts, whole("from"), numbers("compiled"))
    for each in found:
        shown.add_row(
            each.name,
            str(each.version),
            f"{each.steps:,}",
            f"{each.open_runs:,}",
            "code" if each.from_code else "SQL",
            ago(each.created_at, now),
        )
    return shown


def _flow_options(shape: FlowShape) -> str:
    return (
        f"queue {shape.queue}, {shape.max_attempts} attempts, base_delay {shape.base_delay} s, "
        f"timeout {shape.timeout} s"
    )


def _options(step: StepShape) -> str:
    """Return the options of a step that are not its flow's, in the words of the code."""
    has_condition = step.required is not None or step.forbidden is not None
    exhausted, rule = step.when_exhausted, step.trigger_rule
    given = (
        ("queue", step.queue, ""),
        ("", step.max_attempts, " attempts"),
        ("base_delay", step.base_delay, " s"),
        ("timeout", step.timeout, " s"),
        ("start_delay", step.start_delay, " s"),
        ("when", step.required, ""),
        ("unless", step.forbidden, ""),
        ("on_unmet", step.when_unmet if has_condition else None, ""),
        ("tolerate", step.tolerated_count, ""),
        ("tolerate", step.tolerated_percent, "%"),
        ("jitter", step.jitter_percent, "%"),
        ("concurrency", step.concurrency, ""),
        ("trigger_rule", None if rule == "none_failed" else rule, ""),
        ("on_exhausted", None if exhausted == "fail" else exhausted, ""),
    )
    shown = (f"{name} {value}{unit}".lstrip() for name, value, unit in given if value is not None)
    return ", ".join(shown)
