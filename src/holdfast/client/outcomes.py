"""What an ended run means for who waits for it: its output, or an error."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast
from uuid import UUID

from holdfast.codec import decode_error, decoder
from holdfast.definitions.app import AnyWorkflow, App
from holdfast.errors import (
    RunCancelled,
    RunError,
    RunFailed,
    RunTerminated,
    RunTimedOut,
    UnknownWorkflow,
)
from holdfast.types import JSON, Run, Status

decode_plain = cast("Callable[[str], JSON]", decoder(object))

_ENDS: dict[Status, Callable[[UUID], RunError]] = {
    "cancelled": RunCancelled,
    "terminated": RunTerminated,
    "timed_out": RunTimedOut,
}


def restorer(workflow: AnyWorkflow | None, app: App | None) -> Callable[[Run], object]:
    """Return the function that makes an ended run its output, or raises what it ended with.

    Without the workflow, the app's workflow of the run's name says of which type the output is;
    where there is none either, the output is plain JSON values.
    """
    if workflow is not None:
        return partial(_restore, workflow.decode_output)

    def restore(run: Run) -> object:
        try:
            decode = decode_plain if app is None else app.latest(run.name).decode_output
        except UnknownWorkflow:
            decode = decode_plain
        return _restore(decode, run)

    return restore


def _restore(decode: Callable[[str], object], run: Run) -> object:
    if run.status == "failed":
        raise RunFailed(run.run_id, decode_error(run.error or "null"))
    if raises := _ENDS.get(run.status):
        raise raises(run.run_id)
    return decode(run.output or "null")
