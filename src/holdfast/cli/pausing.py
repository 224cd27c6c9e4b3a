"""Pausing and resuming what a worker claims by name: queues and workflows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click

from holdfast.cli import exits
from holdfast.cli.settings import settings_of

if TYPE_CHECKING:
    from holdfast.cli.connecting import Link
    from holdfast.client import Client
    from holdfast.types import Scope


def set_pause(
    context: click.Context,
    scope: Scope,
    names: tuple[str, ...],
    change: Callable[[Client, str], Awaitable[bool]],
    done: str,
    undone: str,
) -> None:
    """Change the pauses of these names, say what became of each, and exit.

    Exit code 1 where one was so before.
    """
    from holdfast.cli.connecting import with_link
    from holdfast.cli.console import write_json

    settings = settings_of(context)

    async def work(link: Link) -> dict[str, bool]:
        return {name: await change(link.client, name) for name in names}

    changes = with_link(settings, work)
    if settings.json:
        write_json([{scope: name, "changed": changed} for name, changed in changes.items()])
    else:
        for name, changed in changes.items():
            click.echo(f"{scope} {name}: {done if changed else undone}")
    context.exit(exits.OK if all(changes.values()) else exits.FAILED)
