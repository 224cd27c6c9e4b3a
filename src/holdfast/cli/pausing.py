"""Pausing and resuming what a worker claims by name: queues and workflows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from holdfast.cli import exits
from holdfast.cli.hints import spelled
from holdfast.cli.settings import settings_of

if TYPE_CHECKING:
    from holdfast.cli.connecting import Link
    from holdfast.types import Scope

_NOBODY = {
    "queue": "no live worker serves it, and no run waits in it",
    "workflow": "no live worker has it, and no run is of it",
}


def pause(context: click.Context, scope: Scope, names: tuple[str, ...], reason: str | None) -> None:
    """Pause these names, say what became of each and which nobody knows, and exit.

    A name that nobody knows may come to be served later, so it is paused all the same. Exit code
    1 where one was paused before.
    """
    from holdfast.cli.connecting import with_link
    from holdfast.cli.console import write_json
    from holdfast.insight.serving import find_unknown

    async def work(link: Link) -> tuple[dict[str, bool], Mapping[str, Sequence[str]]]:
        client = link.client
        change = client.pause_queue if scope == "queue" else client.pause_workflow
        meant = await _full_names(link, scope, names)
        changes = {name: await change(name, reason) for name in meant}
        return changes, await find_unknown(link.store, scope, meant)

    settings = settings_of(context)
    changes, unknown = with_link(settings, work)
    if settings.json:
        write_json(
            [
                {
                    scope: name,
                    "changed": changed,
                    "known": name not in unknown,
                    "similar": unknown.get(name, ()),
                }
                for name, changed in changes.items()
            ]
        )
    else:
        _tell(scope, changes, "paused", "it was paused before")
        for name, similar in unknown.items():
            click.echo(spelled(_warning(scope, name, similar)), err=True)
    context.exit(exits.OK if all(changes.values()) else exits.FAILED)


def resume(context: click.Context, scope: Scope, names: tuple[str, ...]) -> None:
    """Let these names go on, say what became of each, and exit.

    Exit code 1 where one was not paused.
    """
    from holdfast.cli.connecting import with_link
    from holdfast.cli.console import write_json

    async def work(link: Link) -> dict[str, bool]:
        client = link.client
        change = client.resume_queue if scope == "queue" else client.resume_workflow
        return {name: await change(name) for name in await _full_names(link, scope, names)}

    settings = settings_of(context)
    changes = with_link(settings, work)
    if settings.json:
        write_json([{scope: name, "changed": changed} for name, changed in changes.items()])
    else:
        _tell(scope, changes, "resumed", "it was not paused")
    context.exit(exits.OK if all(changes.values()) else exits.FAILED)


async def _full_names(link: Link, scope: Scope, names: Sequence[str]) -> Sequence[str]:
    """Return the names of queues as they are, those of workflows with their apps."""
    if scope == "queue":
        return names
    from holdfast.client.naming import Names

    known = Names(link.store, None)
    return [await known.full(name) for name in names]


def _tell(scope: Scope, changes: Mapping[str, bool], done: str, undone: str) -> None:
    for name, changed in changes.items():
        click.echo(f"{scope} {name}: {done if changed else undone}")


def _warning(scope: Scope, name: str, similar: Sequence[str]) -> str:
    meant = f"did you mean {' or '.join(similar)}? " if similar else ""
    return (
        f"WARNING: nobody knows {scope} {name}: {_NOBODY[scope]}. {meant}"
        f"`holdfast {scope}s resume {name}` takes the pause back"
    )
