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
    "move_build",
    "move_queue",
    "migrate",
    "sweep",
]


class Action(Value, frozen=True, omit_defaults=True):
    """Something that can be done: `do` says what, the other fields say to what.

    - `why`, `retry`, `cancel`, `terminate`, `resume`: the run `run_id`; `failed_steps` is that of
      the retry.
    - `fork`: the run `run_id`; `index` events are kept, and `new_input` means another input.
    - `signal`, `update`: the run `run_id`, with the signal or update `name`.
    - `decide`: the approval `name` of the run `run_id`; `fields` must be filled in.
    - `resume_queue`, `resume_workflow`: the queue or workflow `name`.
    - `start_worker`: it must serve the queue `name`, any if that is empty.
    - `move_build`: the run `run_id`, or all open runs of the build `name`, to another build;
      `app` is the app of that build, if several have builds.
    - `move_queue`: the run `run_id`, to the queue `name`, where workers have its code.
    - `sweep`: delete the runs whose retention is over.
    - `migrate`: the schema `schema`; the role `name`, if there is one, must get rights.
    """

    do: ActionName
    run_id: UUID | None = None
    name: str = ""
    index: int | None = None
    new_input: bool = False
    fields: tuple[FormField, ...] = ()
    schema: str = ""
    failed_steps: bool = False
    app: str = ""


def resume_action(pause: Pause) -> Action:
    """Return the action that resumes a paused queue or workflow."""
    return Action("resume_queue" if pause.scope == "queue" else "resume_workflow", name=pause.name)
