"""Change the runs that a command names, or all runs of a filter."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

import click

from holdfast.cli.answers import Answer, answer, call, current_settings
from holdfast.cli.finding import find_parent, find_run
from holdfast.cli.framework import option, together
from holdfast.cli.inputs import filter_options, read_filters
from holdfast.errors import ForkRefused, RescheduleRefused, RunEnded, RunNotFound
from holdfast.insight.wording import several

if TYPE_CHECKING:
    from holdfast.cli.connecting import Link
    from holdfast.client import Client
    from holdfast.client.bulk import BulkOutcome
    from holdfast.client.filters import RunFilters
    from holdfast.types import RetryPlan, RunRecord


@dataclass(frozen=True, slots=True)
class Change:
    """The outcome for one run. `text` says it to people."""

    changed: bool
    text: str
    new_run_id: UUID | None = None
    plan: RetryPlan | None = None


class ChangeAll(Protocol):
    """A client's method that changes all runs of a filter."""

    def __call__(
        self,
        where: RunFilters,
        *,
        dry_run: bool = False,
        progress: Callable[[BulkOutcome], None] | None = None,
    ) -> Awaitable[BulkOutcome]: ...


@dataclass(frozen=True, slots=True)
class Act:
    """A change of runs. `verb` names it ("paused"), `one` and `every` carry it out.

    `plan` is that of a retry.
    """

    verb: str
    one: Callable[[Client, UUID], Awaitable[Change]]
    every: Callable[[Client], ChangeAll]
    plan: Callable[[Client, UUID], Awaitable[RetryPlan]] | None = None


run_options = together(
    click.argument("references", metavar="[RUN]...", nargs=-1),
    filter_options,
    option("--all", "Change all runs, without a filter.", name="everything"),
    option("--dry-run", "Show what would be done, and change nothing."),
)
"""The argument and the options that choose the runs of a command."""


def act(
    what: Act, references: tuple[str, ...], everything: bool, dry_run: bool, **options: object
) -> None:
    """Change the chosen runs, report what happened to them, and exit."""
    where = read_filters(options)
    if bool(references) + bool(where) + everything != 1:
        raise click.UsageError(
            "name the runs (RUN...), or give filters such as --workflow, or give --all: only one "
            "of these"
        )
    if references:
        answer(lambda link: _act_on_each(link, what, references, dry_run))
        return
    counter = Counter()
    outcome = call(lambda link: _act_on_all(link, what, where, dry_run, counter))
    counter.end()
    counts = {name: getattr(outcome, name) for name in outcome.__struct_fields__}
    Answer({**counts, "dry_run": dry_run}, _summary(what.verb, outcome, dry_run)).write()


def change_runs(
    method: str, verb: str, done: str, not_done: str, chosen: dict[str, Any], **options: Any
) -> None:
    """Change the named runs by a method of `client.runs`, or those of a filter by its `_all` twin.

    `done` and `not_done` say what became of a named run.
    """

    async def one(client: Client, run_id: UUID) -> Change:
        changed = await getattr(client.runs, method)(run_id, **options)
        return Change(changed, done if changed else not_done)

    def every(client: Client) -> ChangeAll:
        return partial(getattr(client.runs, f"{method}_all"), **options)

    act(Act(verb, one, every), **chosen)


async def _act_on_each(link: Link, what: Act, references: tuple[str, ...], dry_run: bool) -> Answer:
    """Find all runs before the first is changed, so that a wrong name changes none."""
    runs = [await find_run(link.client, each) for each in references]
    change = _foreseen if dry_run else _attempt
    changes: dict[UUID, Change] = {}
    try:
        for run in runs:
            changes[run.run_id] = await change(what, link.client, run)
    except BaseException:
        if not dry_run and not current_settings().json:
            click.echo(_lines(changes), err=True, nl=bool(changes))
        raise
    objects = [_object(run_id, change, dry_run) for run_id, change in changes.items()]
    text = _lines(changes)
    ok = dry_run or all(change.changed for change in changes.values())
    return Answer(objects, lambda: click.echo(text), ok=ok)


def _lines(changes: Mapping[UUID, Change]) -> str:
    return "\n".join(f"{run_id}: {change.text}" for run_id, change in changes.items())


async def _foreseen(what: Act, client: Client, run: RunRecord) -> Change:
    """Return what a command would do to a run: of a retry, what it would repeat."""
    from holdfast.insight.retries import plan_texts

    plan = None if what.plan is None else await what.plan(client, run.run_id)
    lines = [f"is {run.state}: nothing done"]
    if plan is not None:
        lines += plan_texts(plan)
    return Change(False, "\n  ".join(lines), plan=plan)


async def _attempt(what: Act, client: Client, run: RunRecord) -> Change:
    try:
        return await what.one(client, run.run_id)
    except RunEnded as error:
        return Change(False, f"it has ended ({error.status}) and cannot be changed")
    except (ForkRefused, RescheduleRefused) as error:
        return Change(False, error.reason)
    except RunNotFound:
        return Change(False, "it was deleted meanwhile")


def _object(run_id: UUID, change: Change, dry_run: bool) -> dict[str, object]:
    made: dict[str, object] = {}
    if not change.changed and not dry_run:
        made["reason"] = change.text
    if change.new_run_id is not None:
        made["new_run_id"] = change.new_run_id
    if change.plan is not None:
        made["plan"] = change.plan
    return {"run_id": run_id, "changed": change.changed, **made}


async def _act_on_all(
    link: Link, what: Act, where: RunFilters, dry_run: bool, counter: Counter
) -> BulkOutcome:
    import asyncio

    meant = await find_parent(link.client, where)
    try:
        return await what.every(link.client)(meant, dry_run=dry_run, progress=counter)
    except BaseException as error:
        counter.end()
        was_stopped = isinstance(error, asyncio.CancelledError)
        if not dry_run and (
            was_stopped or (counter.outcome.changed and not current_settings().json)
        ):
            done = several(counter.outcome.changed, "run")
            click.echo(f"at least {done} {what.verb}; the same command does the rest", err=True)
        raise


def _summary(verb: str, outcome: BulkOutcome, dry_run: bool) -> str:
    changed, left = several(outcome.changed, "run"), f"{outcome.unchanged:,}"
    if dry_run:
        rest = f"; {left} would stay as they are" if outcome.unchanged else ""
        text = f"{changed} would be {verb}{rest}; nothing was changed"
    else:
        text = f"{changed} {verb}" + (f"; {left} left as they were" if outcome.unchanged else "")
    if outcome.left_to_parents:
        left = several(outcome.left_to_parents, "run")
        text += f"\n{left} left out, because other runs started them and were told how they ended"
        text += ": retry those, or name these, or give --parent"
    return text


_LINE_SECONDS = 5.0  # between two lines if stderr is not a terminal


class Counter:
    """Shows the counts so far: on a terminal in one line that changes, elsewhere as lines."""

    def __init__(self) -> None:
        from holdfast.client.bulk import BulkOutcome

        self.outcome = BulkOutcome()
        self._on_terminal = sys.stderr.isatty()
        self._next_line = time.monotonic() + _LINE_SECONDS

    def __call__(self, outcome: BulkOutcome) -> None:
        """Record and show the counts so far."""
        self.outcome = outcome
        text = f"{outcome.changed:,} of {several(outcome.matched, 'run')} …"
        if self._on_terminal:
            click.echo(f"\r{text}\x1b[K", err=True, nl=False)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LINE_SECONDS
            click.echo(text, err=True)

    def end(self) -> None:
        """Clear the line on a terminal."""
        if self._on_terminal:
            click.echo("\r\x1b[K", err=True, nl=False)
