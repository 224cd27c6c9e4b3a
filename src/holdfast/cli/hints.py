"""Write hints with the options of this invocation that name the database."""

from __future__ import annotations

import re
from shlex import join

import click

from holdfast.cli.settings import Settings, settings_of

# Not the command's name alone, nor if options follow it already.
_COMMAND = re.compile(
    r"\bholdfast (?=(?:activities|approvals|dev|doctor|migrate|queues|runs|start|worker|workers"
    r"|workflows)\b)"
)


def spelled(text: str) -> str:
    """Return a text whose commands have this invocation's options that name the database.

    A password is not shown.
    """
    context = click.get_current_context(silent=True)
    options = "" if context is None else database_options(settings_of(context))
    if not options:
        return text
    return _COMMAND.sub(lambda _: f"holdfast {options} ", text)


def database_options(settings: Settings) -> str:
    """Return the options that name the database, without a password."""
    from holdfast.database.urls import redact

    given: list[str] = []
    if settings.database is not None:
        given += ["--database", redact(settings.database)]
    elif settings.data is not None:
        given += ["--data", str(settings.data)]
    if settings.schema != "holdfast":
        given += ["--schema", settings.schema]
    return join(given)
