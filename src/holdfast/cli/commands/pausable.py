"""`holdfast queues` and `holdfast workflows`: list them, pause them and resume them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from holdfast.cli.answers import Answer
from holdfast.cli.framework import Command, Group, command, option
from holdfast.cli.render.console import folding, numbers, table, whole
from holdfast.cli.render.hints import with_database
from holdfast.insight.wording import ago, several
from holdfast.values.moments import to_micros

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from holdfast.cli.connecting import Link
    from holdfast.insight.serving import Served
    from holdfast.types import Scope


@dataclass(frozen=True, slots=True)
class Words:
    """The help texts of the commands, and the name and the reason in their examples.

    `pausing` says what a pause does not affect.
    """

    list: str
    pause: str
    pausing: str
    resume: str
    name: str
    reason: str


def pausable_group(scope: Scope, words: Words) -> Group:
    """Return the group `queues` or `workflows` with its commands."""
    plural = f"{scope}s"
    return Group(
        plural,
        help=f"List, pause and resume {plural}.",
        commands=[_list(scope, words), _pause(scope, words), _resume(scope, words)],
        examples=(f"holdfast {plural} list", f"holdfast {plural} pause {words.name}"),
    )


def _list(scope: Scope, words: Words) -> Command:
    examples = (f"holdfast {scope}s list", f"holdfast {scope}s list --json")

    @command("list", help=words.list, examples=examples)
    async def list_served(link: Link) -> Answer:
        from holdfast.insight.serving import read_served

        found, now = await read_served(link.store, scope), await link.store.now()
        none = f"no worker serves a {scope}, and none is paused"
        return Answer(found, lambda: _table(scope, found, now), none=none)

    return list_served


def _pause(scope: Scope, words: Words) -> Command:
    help = (
        f"{words.pause}\n\n{words.pausing} A {scope} that is not known yet is paused too, with a "
        "warning. Exit code 1 if one of them was paused before."
    )
    example = f'holdfast {scope}s pause {words.name} --reason "{words.reason}"'

    @command("pause", help=help, examples=(example,))
    @click.argument("names", metavar=f"{scope.upper()}...", nargs=-1, required=True)
    @option("--reason TEXT", "Why; shown with the pause.")
    async def pause(link: Link, names: tuple[str, ...], reason: str | None) -> Answer:
        return await _pause_names(link, scope, names, reason)

    return pause


def _resume(scope: Scope, words: Words) -> Command:
    help = f"{words.resume}\n\nExit code 1 if one of them was not paused."

    @command("resume", help=help, examples=(f"holdfast {scope}s resume {words.name}",))
    @click.argument("names", metavar=f"{scope.upper()}...", nargs=-1, required=True)
    async def resume(link: Link, names: tuple[str, ...]) -> Answer:
        change = link.client.queues.resume if scope == "queue" else link.client.workflows.resume
        changes = {name: await change(name) for name in await _full_names(link, scope, names)}
        objects = [{scope: name, "changed": changed} for name, changed in changes.items()]
        text = _report(scope, changes, "resumed", "it was not paused")
        return Answer(objects, lambda: click.echo(text), ok=all(changes.values()))

    return resume


queues = pausable_group(
    "queue",
    Words(
        list="List the queues that workers serve, that are paused, or that tasks wait in.",
        pause="Keep workers from starting anything in these queues.",
        pausing="What already runs is not disturbed.",
        resume="Let workers serve these queues again.",
        name="mail",
        reason="the mail server is down",
    ),
)

workflows = pausable_group(
    "workflow",
    Words(
        list="List the workflows that workers serve, that are paused, or that runs wait for.",
        pause="Keep workers from continuing runs of these workflows, of any version.",
        pausing="A run that a worker holds continues until it waits.",
        resume="Let the runs of these workflows continue.",
        name="checkout",
        reason="wrong prices",
    ),
)


async def _pause_names(
    link: Link, scope: Scope, names: tuple[str, ...], reason: str | None
) -> Answer:
    """Pause these names, and report each change and each unknown name.

    An unknown name is paused too: a worker may serve it later.
    """
    from holdfast.insight.serving import find_unknown

    change = link.client.queues.pause if scope == "queue" else link.client.workflows.pause
    full_names = await _full_names(link, scope, names)
    changes = {name: await change(name, reason) for name in full_names}
    unknown = await find_unknown(link.store, scope, full_names)

    def write() -> None:
        click.echo(_report(scope, changes, "paused", "it was paused before"))
        for name, similar in unknown.items():
            click.echo(with_database(_warning(scope, name, similar)), err=True)

    objects = [
        {
            scope: name,
            "changed": changed,
            "known": name not in unknown,
            "similar": unknown.get(name, ()),
        }
        for name, changed in changes.items()
    ]
    return Answer(objects, write, ok=all(changes.values()))


async def _full_names(link: Link, scope: Scope, names: Sequence[str]) -> Sequence[str]:
    """Return queues as they are named, and workflows with their apps."""
    if scope == "queue":
        return names
    from holdfast.client.naming import Names

    known = Names(link.store, None)
    return [await known.full(name) for name in names]


def _report(scope: Scope, changes: Mapping[str, bool], done: str, undone: str) -> str:
    return "\n".join(
        f"{scope} {name}: {done if changed else undone}" for name, changed in changes.items()
    )


def _warning(scope: Scope, name: str, similar: Sequence[str]) -> str:
    unknown = {
        "queue": "no live worker serves it, no run waits in it, and no message queue has this name",
        "workflow": "no live worker has it, and it has no run",
    }
    meant = f"did you mean {' or '.join(similar)}? " if similar else ""
    return (
        f"WARNING: nobody knows {scope} {name}: {unknown[scope]}. {meant}"
        f"`holdfast {scope}s resume {name}` undoes the pause"
    )


def _table(scope: Scope, found: Sequence[Served], now: int) -> Table:
    """Return queues or workflows as a table, a row each."""
    more = ("versions",) if scope == "workflow" else ()
    shown = table(folding(scope), whole(*more), numbers("workers"), folding(""))
    for each in found:
        versions = [", ".join(map(str, each.versions))] if scope == "workflow" else []
        shown.add_row(each.name, *versions, str(each.workers), _notes(each, now))
    return shown


def _notes(served: Served, now: int) -> Text:
    from rich.text import Text

    notes: list[Text] = []
    if served.paused_at is not None:
        reason = f": {served.reason}" if served.reason else ""
        notes.append(Text(f"paused {ago(to_micros(served.paused_at), now)}{reason}", "yellow"))
    if served.unserved:
        notes.append(Text(f"{several(served.unserved, 'task')} nobody serves", "bold red"))
    return Text("; ").join(notes)
