"""Write hints: actions as commands, with the options that name the database."""

from __future__ import annotations

import os
import re
from shlex import join, quote
from typing import TYPE_CHECKING

import click

from holdfast.cli.settings import Settings, settings_of

if TYPE_CHECKING:
    from holdfast.insight.actions import Action
    from holdfast.types import FormField

# Not the command's name alone, nor if options follow it already.
_COMMAND = re.compile(
    r"\bholdfast (?=(?:activities|alerts|approvals|archive|builds|dev|doctor|flows|limits|migrate"
    r"|queues?|rules|runs|schedules|server|shards|start|sweep|topics|worker|workers|workflows)\b)"
)


def with_database(text: str) -> str:
    """Return a text whose commands are as they were called here, with the options of the database.

    A password is not shown. `manage.py holdfast` says how it is called, in the environment.
    """
    context = click.get_current_context(silent=True)
    options = "" if context is None else _database_options(settings_of(context))
    command = " ".join(filter(None, (os.environ.get("HOLDFAST_COMMAND", "holdfast"), options)))
    return _COMMAND.sub(lambda _: f"{command} ", text)


def _database_options(settings: Settings) -> str:
    """Return the options that name the database, without a password."""
    from holdfast.database.urls import redact, split_urls

    given: list[str] = []
    if settings.database is not None:
        for url in split_urls(settings.database):
            given += ["--database", redact(url)]
    elif settings.data is not None:
        given += ["--data", str(settings.data)]
    if settings.schema != "holdfast":
        given += ["--schema", settings.schema]
    return join(given)


def command_of(action: Action) -> str:
    """Return the command that carries out an action."""
    run, name = action.run_id, quote(action.name)
    match action.do:
        case "why" | "retry" | "cancel" | "resume":
            return f"holdfast runs {action.do} {run}" + " --failed-steps" * action.failed_steps
        case "terminate":
            return f'holdfast runs terminate {run} --reason "…"'
        case "fork":
            input = " --input '…'" if action.new_input else ""
            return f"holdfast runs fork {run} --index {action.index}{input}"
        case "signal" | "update":
            # The code says which payload fits: with any example, the code could fail on it.
            return f"holdfast runs {action.do} {run} {name} '…'"
        case "decide":
            values = [f"--set {quote(f'{each.name}={_example(each)}')}" for each in action.fields]
            return " ".join([f"holdfast approvals decide {run} {name} --approve", *values])
        case "resume_queue":
            return f"holdfast queues resume {name}"
        case "resume_workflow":
            return f"holdfast workflows resume {name}"
        case "start_worker":
            return "holdfast worker MODULE:APP" + (f" --queue {name}" if action.name else "")
        case "move_build":
            runs = f"--from {name}" if action.name else str(run)
            app = f" --app {action.app}" if action.app else ""
            return f"holdfast runs move-build {runs} --to BUILD{app}"
        case "move_queue":
            return f"holdfast runs reschedule {run} --to-queue {name}"
        case "sweep":
            return "holdfast sweep"
        case "migrate":
            return _migrate(action)


def _migrate(action: Action) -> str:
    from holdfast.database.schema import migrate_command

    grant = f" --grant {quote(action.name)}" if action.name else ""
    return migrate_command(action.schema) + grant


def _example(field: FormField) -> str:
    """Return a value that fits a field, or a placeholder for one."""
    import msgspec

    from holdfast.types import FORMAT_EXAMPLES

    if field.type == "choice" and field.choices:
        choice = field.choices[0]
        return choice if isinstance(choice, str) else msgspec.json.encode(choice).decode()
    examples = {**FORMAT_EXAMPLES, "number": "0", "boolean": "yes"}
    return examples.get(field.format or field.type, "…")
