"""What an ended run means for who waits for it: its output, or an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Never, TypeVar, cast
from uuid import UUID

from holdfast.codec import decode_error, decoder
from holdfast.definitions.app import App
from holdfast.definitions.workflows import Workflow
from holdfast.errors import (
    RunCancelled,
    RunError,
    RunFailed,
    RunTerminated,
    RunTimedOut,
    UnknownWorkflow,
)
from holdfast.types import JSON, End, RunRecord, Status

Out_co = TypeVar("Out_co", covariant=True)

decode_plain = cast("Callable[[str], JSON]", decoder(object))

_ENDS: dict[Status, Callable[[UUID], RunError]] = {
    "cancelled": RunCancelled,
    "terminated": RunTerminated,
    "timed_out": RunTimedOut,
}


class Restorer(Generic[Out_co]):
    """Makes a run's end its output, or raises what it ended with.

    Without the workflow, the app's workflow of the run's name says of which type the output is;
    where there is none either, the output is plain JSON values.
    """

    def __init__(self, workflow: Workflow[Never, Out_co] | None, app: App | None) -> None:
        self._app = app
        self._decode = workflow.decode_output if workflow is not None else None

    @property
    def needs_run(self) -> bool:
        """Whether the type of the output is known by the run's name only."""
        return self._decode is None and self._app is not None

    def __call__(self, end: End, run: RunRecord | None = None) -> Out_co:
        """Return the output, or raise the error. `run` is what `needs_run` asks for."""
        if end.status == "failed":
            raise RunFailed(end.run_id, decode_error(end.error or "null"))
        if raises := _ENDS.get(end.status):
            raise raises(end.run_id)
        decode = self._decode or self._decoder_of(run)
        return cast("Out_co", decode(end.output or "null"))

    def _decoder_of(self, run: RunRecord | None) -> Callable[[str], object]:
        if self._app is None or run is None or run.app != self._app.name:
            return decode_plain
        try:
            return self._app.latest(run.name).decode_output
        except UnknownWorkflow:
            return decode_plain
