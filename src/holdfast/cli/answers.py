"""Carry out a command: read its settings, open a client, do its work, write text or JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, TypeVar

import click

from holdfast.cli import exits
from holdfast.cli.render.console import console, write_json
from holdfast.cli.settings import Settings, settings_of

if TYPE_CHECKING:
    from holdfast.cli.connecting import Link
    from holdfast.definitions.app import App

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a command: `json` for scripts, `text` for people.

    `text` is a sentence, or a function that writes to the console or returns what it prints. If
    the command did not do what was asked (`ok` is false), the exit code is 1, and a sentence goes
    to stderr. If `json` is empty, `none` is written to stderr in place of the text.
    """

    json: object
    text: str | Callable[[], object]
    none: str | None = None
    ok: bool = True

    def write(self) -> None:
        """Write the answer; exit with code 1 if it is not `ok`."""
        if current_settings().json:
            write_json(self.json)
        elif self.none is not None and not self.json:
            click.echo(self.none, err=True)
        elif isinstance(self.text, str):
            click.echo(self.text, err=not self.ok)
        elif (shown := self.text()) is not None:
            console().print(shown)
        if not self.ok:
            click.get_current_context().exit(exits.FAILED)


def current_settings() -> Settings:
    """Return the settings of the command that runs now."""
    return settings_of(click.get_current_context())


def call(
    work: Callable[[Link], Awaitable[T]],
    *,
    app: App | None = None,
    make: bool = False,
    stored: bool = False,
) -> T:
    """Open a client on the database of the settings, and return what `work` does with it.

    The options are those of `with_link`.
    """
    from holdfast.cli.connecting import with_link

    return with_link(current_settings(), work, app=app, make=make, stored=stored)


def answer(
    work: Callable[[Link], Awaitable[Answer]], *, app: App | None = None, make: bool = False
) -> None:
    """Do `work` with a client, close it, and write the answer."""
    call(work, app=app, make=make).write()


def answered(work: Callable[..., Awaitable[Answer]]) -> Callable[..., None]:
    """Return a command's function: it calls `work` with a client and the command's parameters."""

    @wraps(work)
    def carry_out(*args: object, **given: object) -> None:
        answer(lambda link: work(link, *args, **given))

    return carry_out
