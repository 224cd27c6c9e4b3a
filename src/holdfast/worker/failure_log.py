"""Log lines for attempts and runs that failed, and for signals that did not arrive.

Records carry `run_id`, `workflow`, `key`, `attempt` and `error` as attributes. The traceback shows
the user's code, as it was recorded.
"""

from __future__ import annotations

import logging
from uuid import UUID

from holdfast.codec import decode_error
from holdfast.runtime.turn.run_retry import Retried
from holdfast.types import ClaimedTask, ErrorInfo, Finish, StepTaskOutcome, Undelivered
from holdfast.values.durations import length_of
from holdfast.values.loggers import get_logger

logger = get_logger("holdfast.run")


def log_failed_step(
    run_id: UUID,
    workflow: str,
    key: str,
    attempt: int,
    error: ErrorInfo,
    retry_seconds: float | None,
) -> None:
    """Warn that an attempt of a step failed; `retry_seconds` is None if no attempt follows."""
    logger.warning(
        "run %s (%s): attempt %d of step %s failed: %s; %s",
        run_id,
        workflow,
        attempt,
        key,
        error,
        "it is not tried again"
        if retry_seconds is None
        else f"next attempt in {length_of(retry_seconds)}",
        extra=_fields(run_id, error, workflow=workflow, key=key, attempt=attempt),
    )


def log_unheld_step(run_id: UUID, workflow: str, key: str, error: ErrorInfo) -> None:
    """Warn that a transaction did not commit, for no fault of its code."""
    logger.warning(
        "run %s (%s): the transaction of step %s was rolled back: %s",
        run_id,
        workflow,
        key,
        error.message,
        extra={"run_id": str(run_id), "workflow": workflow, "key": key},
    )


def log_failed_activity(
    run_id: UUID, name: str, key: str, attempt: int, error: ErrorInfo, then: str | None
) -> None:
    """Warn that an attempt of an activity failed; `then` says what follows, None if unknown."""
    logger.warning(
        "run %s: attempt %d of activity %s failed: %s%s",
        run_id,
        attempt,
        key,
        error,
        f"; {then}" if then else "",
        extra=_fields(run_id, error, activity=name, key=key, attempt=attempt),
    )


def log_failed_flow_step(task: ClaimedTask, error: ErrorInfo, outcome: StepTaskOutcome) -> None:
    """Warn that an attempt at a flow's step failed, and tell what the database does about it."""
    what = {"retried": "it is tried again", "recorded": "it is not tried again", "lost": "too late"}
    logger.warning(
        "run %s (%s): attempt %d of step %s failed: %s; %s",
        task.run_id,
        task.name,
        task.attempts,
        task.key,
        error,
        what[outcome],
        extra=_fields(task.run_id, error, flow=task.name, key=task.key, attempt=task.attempts),
    )


def log_end(run_id: UUID, workflow: str, end: Finish) -> None:
    """Log that a run failed, or warn that an attempt of it failed and is followed by another."""
    if isinstance(end, Retried):
        number, error = end.attempt.number, decode_error(end.failure)
        logger.warning(
            "run %s (%s): attempt %d of the run failed: %s; next attempt in %s",
            run_id,
            workflow,
            number,
            error,
            length_of(end.attempt.delay),
            extra=_fields(run_id, error, workflow=workflow, attempt=number),
        )
    elif end.error is not None:
        log_failed_run(run_id, workflow, end.error)


def log_failed_run(run_id: UUID, workflow: str, error_text: str) -> None:
    """Log that a run failed, with its traceback. `error_text` is JSON text."""
    if not logger.isEnabledFor(logging.ERROR):
        return
    error = decode_error(error_text)
    record = logger.makeRecord(
        logger.name,
        logging.ERROR,
        __file__,
        0,
        "run %s (%s) failed: %s",
        (run_id, workflow, error),
        None,
        func="log_failed_run",
        extra=_fields(run_id, error, workflow=workflow),
    )
    text = error.format().rstrip()
    if "\n" in text:  # else the message has said it
        record.exc_text = text  # formatters print it if a record lacks an exception
    logger.handle(record)


def log_undelivered_signal(signal: Undelivered) -> None:
    """Warn that a run sent a signal to a run that cannot receive it."""
    logger.warning(
        "run %s: signal %r was not delivered: run %s %s",
        signal.run_id,
        signal.name,
        signal.target,
        "has ended" if signal.outcome == "ended" else "does not exist",
        extra={
            "run_id": str(signal.run_id),
            "signal": signal.name,
            "target_run_id": str(signal.target),
        },
    )


def _fields(run_id: UUID, error: ErrorInfo, **more: object) -> dict[str, object]:
    """Return the attributes of a record that is about an error."""
    return {"run_id": str(run_id), **more, "error": error.kind}
