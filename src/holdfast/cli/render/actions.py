"""Turn actions into the commands that carry them out."""

from __future__ import annotations

from shlex import quote

import msgspec

from holdfast.database.schema import migrate_command
from holdfast.insight.actions import Action
from holdfast.types import FormField


def command_of(action: Action) -> str:
    """Return the command that carries out an action."""
    run, name = action.run_id, quote(action.name)
    match action.do:
        case "why" | "retry" | "cancel" | "resume":
            return f"holdfast runs {action.do} {run}"
        case "terminate":
            return f'holdfast runs terminate {run} --reason "…"'
        case "fork":
            input = " --input '…'" if action.new_input else ""
            return f"holdfast runs fork {run} --index {action.index}{input}"
        case "signal" | "update":
            return f"holdfast runs {action.do} {run} {name} '{{}}'"
        case "decide":
            values = [f"--set {quote(f'{each.name}={_example(each)}')}" for each in action.fields]
            return " ".join([f"holdfast approvals decide {run} {name} --approve", *values])
        case "resume_queue":
            return f"holdfast queues resume {name}"
        case "resume_workflow":
            return f"holdfast workflows resume {name}"
        case "start_worker":
            return "holdfast worker MODULE:APP" + (f" --queue {name}" if action.name else "")
        case "migrate":
            return _migrate(action)


def _migrate(action: Action) -> str:
    grant = f" --grant {quote(action.name)}" if action.name else ""
    return migrate_command(action.schema) + grant


def _example(field: FormField) -> str:
    """Return a value that fits a field, or a placeholder for one."""
    if field.type == "choice" and field.choices:
        choice = field.choices[0]
        return choice if isinstance(choice, str) else msgspec.json.encode(choice).decode()
    return {"number": "0", "boolean": "yes"}.get(field.type, "…")
