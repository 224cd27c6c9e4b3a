"""The commands of what is paused by name: `holdfast queues` and `holdfast workflows`."""

from __future__ import annotations

from dataclasses import dataclass

import click

from holdfast.cli.framework import Command, Group, command
from holdfast.cli.settings import settings_of
from holdfast.types import Scope


@dataclass(frozen=True, slots=True)
class Words:
    """What the commands say of themselves: what each does, and the name and reason of examples.

    `pausing` says what a pause leaves alone.
    """

    list: str
    pause: str
    pausing: str
    resume: str
    name: str
    reason: str


def pausable_group(scope: Scope, words: Words) -> Group:
    """Make the group of a scope, `queues` or `workflows`, with its commands."""
    plural = f"{scope}s"
    return Group(
        plural,
        help=f"Look at {plural}, pause them, and let them go on.",
        commands=[_list(scope, words), _pause(scope, words), _resume(scope, words)],
        examples=(f"holdfast {plural} list", f"holdfast {plural} pause {words.name}"),
    )


def _list(scope: Scope, words: Words) -> Command:
    examples = (f"holdfast {scope}s list", f"holdfast {scope}s list --json")

    @command("list", help=words.list, examples=examples)
    @click.pass_context
    def list_served(context: click.Context) -> None:
        from holdfast.cli.render_served import show_served

        show_served(settings_of(context), scope)

    return list_served


def _pause(scope: Scope, words: Words) -> Command:
    help = (
        f"{words.pause}\n\n{words.pausing} A {scope} that nobody knows yet is paused too, with a "
        "warning. Exit code 1 where one was paused before."
    )
    example = f'holdfast {scope}s pause {words.name} --reason "{words.reason}"'

    @command("pause", help=help, examples=(example,))
    @click.argument("names", metavar=f"{scope.upper()}...", nargs=-1, required=True)
    @click.option("--reason", help="Shown wherever the pause is.")
    @click.pass_context
    def pause(context: click.Context, names: tuple[str, ...], reason: str | None) -> None:
        from holdfast.cli import pausing

        pausing.pause(context, scope, names, reason)

    return pause


def _resume(scope: Scope, words: Words) -> Command:
    help = f"{words.resume}\n\nExit code 1 where one was not paused."

    @command("resume", help=help, examples=(f"holdfast {scope}s resume {words.name}",))
    @click.argument("names", metavar=f"{scope.upper()}...", nargs=-1, required=True)
    @click.pass_context
    def resume(context: click.Context, names: tuple[str, ...]) -> None:
        from holdfast.cli import pausing

        pausing.resume(context, scope, names)

    return resume
