"""What can be done about something that was found: values that a caller turns into calls."""

from __future__ import annotations

from typing import Literal, TypeAlias
from uuid import UUID

from holdfast.types import FormField, Pause, Value

ActionName: TypeAlias = Literal[
    "why",
    "retry",
    "fork",
    "cancel",
    "terminate",
    "resume",
    "signal",
    "update",
    "decide",
    "resume_queue",
    "resume_workflow",
    "start_worker",
    "migrate",
]


class Action(Value, frozen=True, omit_defaults=True):
    """Something that can be done. `do` says what, the other fields say to what.

    `run_id` is the run of the actions `why` to `decide`. `name` is that of the signal, update,
    approval, queue or workflow; the queue that the worker to start must serve, empty for any; or
    the role that a migration must grant its rights to. `index` is how many events a fork keeps,
    and with `new_input` it needs another input. `fields` are those that a decision must fill in.
    `schema` is the one to migrate.
    """

    do: ActionName
    run_id: UUID | None = None
    name: str = ""
    index: int | None = None
    new_input: bool = False
    fields: tuple[FormField, ...] = ()
    schema: str = ""


def resume_action(pause: Pause) -> Action:
    """Return the action that resumes a paused queue or workflow."""
    return Action("resume_queue" if pause.scope == "queue" else "resume_workflow", name=pause.name)
