"""How a run ends: derived from how its code has ended."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.codec import describe, encode_error, summarize
from holdfast.details import WorkflowCanceled, WorkflowFailed
from holdfast.errors import DeterminismError, PayloadError
from holdfast.events import CANCELLED, COMPLETED, CONTINUED, FAILED, write_details
from holdfast.runtime.code.commands import Commands
from holdfast.runtime.code.continuing import ContinueAsNew, continuation
from holdfast.runtime.code.instance import Instance
from holdfast.types import Finish

_NOT_RAISED: Final = (DeterminismError, ContinueAsNew)  # errors of which a run does not fail


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The end of a run: the type and the details of its last event, and how it ended."""

    kind: str
    text: str | None
    end: Finish


def raised(instance: Instance) -> BaseException | None:
    """Return what the run's own code has raised, if the run fails of it."""
    root, fatal = instance.loop.root, instance.loop.fatal
    if fatal is not None or root is None or not root.done():
        return fatal
    if root.cancelled():
        if instance.cancel_requested:
            return None
        return RuntimeError("the workflow was cancelled, but not from outside")
    error = root.exception()
    return None if error is None or isinstance(error, _NOT_RAISED) else error


def must_stay_open(instance: Instance) -> bool:
    """Return True if a run must stay open although its code has returned, or was cancelled.

    Either activities that it never awaited still run, or it is paused and would continue as a new
    run, which would not be paused. A cancelled run stays open for activities that a cancel does not
    stop, or that must have stopped.
    """
    commands: Commands | None = instance.ledgers.get(Commands)
    if commands is None and instance.paused_events is None:
        return False
    root = instance.loop.root
    if instance.loop.fatal is not None or root is None:
        return False
    error = None if root.cancelled() else root.exception()
    is_continued = isinstance(error, ContinueAsNew)
    if root.cancelled() or (is_continued and instance.cancel_unheard):
        return instance.cancel_requested and commands is not None and commands.outlast_cancel()
    if is_continued:
        if instance.paused_events is not None:
            return True
    elif error is not None:
        return False
    if commands is None or not commands.open_activities or not commands.must_stay_open():
        return False
    if instance.cancel_requested:
        commands.stop_waiting()
        return commands.outlast_cancel()
    return True


def outcome(instance: Instance, unstorable: PayloadError | None = None) -> Outcome:
    """Return how a run ends, from how its code has ended.

    A cancellation that was not requested is a failure, and so is an output that cannot be stored:
    `unstorable` is the error if the database has refused it.
    """
    root, error = instance.loop.root, instance.loop.fatal or unstorable
    if error is None and root is not None and not root.cancelled():
        error = root.exception()
        if error is None:
            try:
                output = instance.workflow.encode_output(root.result())
                return Outcome(COMPLETED, None, Finish("completed", output))
            except PayloadError as refused:
                return _failed(instance, refused)
    failure = unstorable or raised(instance)
    if failure is not None:
        return _failed(instance, failure)
    assert root is not None, "only code that was started ends"
    if root.cancelled():
        return Outcome(CANCELLED, _cleanup(instance), Finish("cancelled"))
    assert error is not None, "code that raised nothing has completed"
    if not isinstance(error, ContinueAsNew):
        raise error  # a DeterminismError
    if instance.cancel_unheard:  # the next run would not receive the cancel
        return Outcome(CANCELLED, None, Finish("cancelled"))
    new = continuation(instance, error)
    end = Finish("continued", f'{{"run_id":"{new.run_id}"}}')
    return Outcome(CONTINUED, write_details(new), end)


def _failed(instance: Instance, error: BaseException) -> Outcome:
    history, text = instance.history, encode_error(describe(error))
    fatal = history.note_failures().fatal(error, history.called_at)
    details = write_details(WorkflowFailed(fatal.keys, fatal.seen, fatal.after, fatal.handling))
    return Outcome(FAILED, details, Finish("failed", error=text))


def _cleanup(instance: Instance) -> str | None:
    """Return what a cancelled run called because of the cancel, None if nothing."""
    found = instance.history.note_failures().cleanup()
    if not (found.after or found.handling):
        return None
    return write_details(WorkflowCanceled(found.seen, found.after, found.handling))


def leftovers(instance: Instance) -> list[str]:
    """Return warnings: what the end of a run drops, and which recorded calls were not used."""
    commands: Commands | None = instance.ledgers.get(Commands)
    found = [] if commands is None else commands.failures()
    for task in instance.loop.tasks:
        if not task.done():
            found.append(f"the workflow has ended, and its task {task.get_name()!r} is dropped")
        # asyncio's own flag: its exception was never retrieved
        elif task._log_traceback and (error := task.exception()) is not None:
            found.append(f"task {task.get_name()!r} failed unseen: {summarize(error)}")
    history = instance.history
    # Most runs have recorded nothing more: then `unused` need not be asked.
    if (history.ends or history.recorded or history.retries) and (unused := history.unused()):
        found.append(f"recorded, but no longer called by the code: {', '.join(unused)}")
    return found
