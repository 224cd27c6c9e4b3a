"""How a run ended, from what became of its code."""

from __future__ import annotations

from holdfast.codec import describe, encode_error
from holdfast.errors import DeterminismError, PayloadError
from holdfast.runtime.details import CANCELLED, COMPLETED, FAILED
from holdfast.runtime.instance import Instance
from holdfast.types import Finish


def outcome(instance: Instance) -> tuple[str, Finish]:
    """Return the type of a run's last event, and its end.

    A cancellation that nobody asked for is a failure, and so is an output that cannot be
    stored.
    """
    root, fatal = instance.root, instance.loop.fatal
    if fatal is not None:
        return _failed(fatal)
    assert root is not None, "only code that was started ends"
    if root.cancelled():
        if instance.cancel_requested:
            return CANCELLED, Finish("cancelled")
        return _failed(RuntimeError("the workflow was cancelled, but not from outside"))
    error = root.exception()
    if error is None:
        try:
            return COMPLETED, Finish("completed", instance.workflow.encode_output(root.result()))
        except PayloadError as refused:
            error = refused
    if isinstance(error, DeterminismError):
        raise error
    return _failed(error)


def _failed(error: BaseException) -> tuple[str, Finish]:
    return FAILED, Finish("failed", error=encode_error(describe(error)))


def leftovers(instance: Instance) -> list[str]:
    """Say what of a run's code is dropped with its end, and what of its log was not used."""
    found: list[str] = []
    for task in instance.loop.tasks:
        if not task.done():
            found.append(f"the workflow has ended, and its task {task.get_name()!r} is dropped")
        elif task._log_traceback:  # as asyncio knows it: nobody has asked for its exception
            found.append(f"task {task.get_name()!r} failed unseen: {task.exception()!r}")
    if instance.loop.parked:
        keys = ", ".join(sorted(instance.loop.parked))
        found.append(f"recorded, but no longer called by the code: {keys}")
    return found
