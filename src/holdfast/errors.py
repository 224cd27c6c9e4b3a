"""Every error that holdfast raises, in one tree.

```
HoldfastError
├── ConfigurationError            a definition or an option that cannot work
│   ├── InvalidName               a name outside its alphabet
│   └── WebhookSecretMissing      the server lacks the key of a signature
├── DatabaseError                 the database, before any run is touched
│   ├── InvalidDatabaseURL
│   ├── DatabaseUnavailable       (also a ConnectionError)
│   ├── InsufficientRights
│   ├── ServerTooOld
│   ├── InvalidSchemaName
│   ├── SchemaMissing
│   ├── SchemaOutdated
│   ├── SchemaTooNew
│   ├── MigrationFailed
│   ├── EmbeddedServerError
│   ├── QueryTooSlow              a list that took too long: narrow it
│   ├── ShardsChanged             there are more shards than this program was told of
│   └── TransientDatabaseError    safe to try again: deadlock, serialization
│       └── LockTimeout           another transaction holds what the call needs
├── ObjectsUnavailable            the folder or the object store of the archive
├── RunError                      one run, as a caller sees it
│   ├── RunNotFound
│   ├── RunEnded                  no more signals or cancels are accepted
│   ├── UnknownWorkflow
│   ├── AmbiguousWorkflow         several apps have a workflow of this name
│   ├── UnknownSchedule           the database has no schedule of this name
│   ├── ScheduleExists            the name of a new schedule is taken
│   ├── ScheduleChanged           other programs changed it meanwhile
│   ├── UnknownBuild              no worker of this build has ever signed on
│   ├── UnknownQueue              the database has no message queue of this name
│   ├── QueueExists               there is one with other settings
│   ├── QueueInUse                it has the dead letters of another one
│   ├── MessageNotFound           the message queue does not have the message
│   ├── MessageInFlight           a receiver has the message, so it cannot be cancelled or changed
│   ├── RunFailed                 its result is an error
│   ├── RunCancelled
│   ├── RunTerminated
│   ├── RunTimedOut
│   ├── RunExists                 another run has the id or the key
│   ├── RunActive                 a run with the same singleton key has not ended
│   ├── StartThrottled            a workflow was started as often as its throttle allows
│   ├── ForkRefused               the run cannot be forked or retried that way
│   ├── ApprovalNotFound          the run has never asked for this approval
│   ├── ApprovalDecided           another decision was first
│   ├── ApprovalClosed            the run does not wait for a decision any more
│   ├── WebhookNotFound           no run has opened this URL
│   ├── WebhookClosed             the run takes no POST at this URL any more
│   ├── UpdateRejected            the run refused the update
│   ├── UpdateFailed              the run accepted it, and failed to carry it out
│   ├── TokenUnknown              no attempt of an activity has this token any more
│   └── ResultTimeout             the caller stopped waiting (also a TimeoutError)
├── StreamClosed                  an attempt can write no more to a stream
├── PayloadError                  a value that cannot be stored (also a ValueError)
│   └── InvalidInput              a value that does not fit the declared type
│       └── SignatureInvalid      a request whose signature is missing or wrong
└── CallFailed                    what a workflow called has failed
    ├── StepFailed                a step's attempts are exhausted
    │   └── StepTimedOut
    ├── ActivityFailed            an activity's attempts are exhausted
    │   └── ActivityTimedOut
    └── ChildFailed               a child run did not complete
```

Errors that workflow code must not catch derive from `BaseException`: `DeterminismError`.
"""

from __future__ import annotations

import copyreg
from typing import TYPE_CHECKING, Final
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from holdfast.types.base import ErrorInfo


def add_recorded(exc: BaseException, error: ErrorInfo) -> None:
    """Add the traceback of a recorded error to an exception, as a note below its own."""
    if error.traceback:
        exc.add_note(f"recorded:\n{error.format().rstrip()}")


class HoldfastError(Exception):
    """Something holdfast refuses or cannot do; the message says what to do about it."""

    def __reduce__(self) -> tuple[object, ...]:
        """Let copies, also in other processes, have what the constructor made of its arguments."""
        state = {**self.__dict__, "args": self.args}
        return copyreg.__newobj__, (type(self),), state  # type: ignore[attr-defined]


class ConfigurationError(HoldfastError):
    """A definition or an option cannot work."""


class InvalidName(ConfigurationError):
    """A name is outside the alphabet of its kind."""


class WebhookSecretMissing(ConfigurationError):
    """This program does not have the secret with which the POST to a webhook is checked."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"${name} has the secret of a webhook, and is not set: set it where POSTs are received"
        )
        self.name = name


class DatabaseError(HoldfastError):
    """The database cannot be used as it is."""


class InvalidDatabaseURL(DatabaseError):
    """The database URL cannot be understood."""


class DatabaseUnavailable(DatabaseError, ConnectionError):
    """The database does not answer, or refuses this login.

    `unanswered` is True if the answer of a call is lost: the call may have been carried out.
    """

    def __init__(self, message: str = "", *, unanswered: bool = False) -> None:
        if unanswered:
            message = f"the database did not answer, but may have carried out the call: {message}"
        super().__init__(message)
        self.unanswered = unanswered


class InsufficientRights(DatabaseError):
    """The role may not do what is needed."""


class ServerTooOld(DatabaseError):
    """The server is older than holdfast supports."""

    def __init__(self, found: str, needed: str = "14") -> None:
        super().__init__(
            f"the server is PostgreSQL {found}; holdfast needs {needed} or newer: "
            "upgrade it, or point --database at a newer one"
        )
        self.found, self.needed = found, needed


class InvalidSchemaName(DatabaseError):
    """The schema's name is not a plain lower-case identifier."""


class SchemaMissing(DatabaseError):
    """The database has no holdfast schema yet."""


class SchemaOutdated(DatabaseError):
    """The schema is older than this version of holdfast."""


class SchemaTooNew(DatabaseError):
    """The schema is newer than this version of holdfast."""


class MigrationFailed(DatabaseError):
    """A migration could not be applied; nothing of it was kept."""


class EmbeddedServerError(DatabaseError):
    """The embedded PostgreSQL cannot be started or reached."""


class QueryTooSlow(DatabaseError):
    """A list took longer than a query may take; the database itself answers."""


class ShardsChanged(DatabaseError):
    """There are more shards than this program was told of: name all, and start it again."""


class TransientDatabaseError(DatabaseError):
    """The database gave up on this transaction; the same call may be made again."""


class LockTimeout(TransientDatabaseError):
    """Another transaction held for too long what the call needs; the call may be made again."""


class ObjectsUnavailable(HoldfastError):
    """A folder or an object store, of the archive or of large payloads, cannot be used.

    Nothing was deleted or started.
    """

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"{url} cannot be used: {reason}")
        self.url, self.reason = url, reason


class RunError(HoldfastError):
    """Something about one run, as a caller sees it."""

    run_id: UUID | None = None


class RunNotFound(RunError):
    """No run has this id."""

    def __init__(self, run_id: UUID, message: str | None = None) -> None:
        super().__init__(
            message or f"no run {run_id}: it was never started here, or retention removed it"
        )
        self.run_id = run_id


class RunEnded(RunError):
    """The run has ended and accepts nothing more."""

    def __init__(self, run_id: UUID, status: str) -> None:
        super().__init__(f"run {run_id} has ended ({status}) and accepts nothing more")
        self.run_id, self.status = run_id, status


class UnknownWorkflow(RunError):
    """No workflow of this name is registered."""


class UnknownFlow(RunError):
    """The database has no flow of this name, or its flow has no such step."""


class FlowInUse(RunError):
    """Runs of the flow have not ended, so that it cannot be deleted."""


class UnknownSchedule(RunError):
    """The database has no schedule of this name."""

    def __init__(self, name: str, similar: str | None = None) -> None:
        meant = "" if similar is None else f" (did you mean {similar}?)"
        super().__init__(
            f"the database has no schedule {name}{meant}; `holdfast schedules list` names those "
            "that it has"
        )
        self.name = name


class ScheduleExists(RunError):
    """The name of a new schedule is taken."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is a schedule {name}: update it, or give the new one another name")
        self.name = name


class ScheduleChanged(RunError):
    """Other programs changed a schedule again and again while it was to be changed."""

    def __init__(self, name: str) -> None:
        super().__init__(f"schedule {name} was changed by others meanwhile: look at it, try again")
        self.name = name


class UnknownBuild(RunError):
    """No worker of this build of the app has ever signed on; `known` are those that have."""

    def __init__(self, app: str, build: str, known: Sequence[str]) -> None:
        have = f"known are {', '.join(known)}" if known else "the app has none"
        super().__init__(
            f"no worker of build {build} of app {app} has ever signed on ({have}): start one first"
        )
        self.app, self.build, self.known = app, build, tuple(known)


class UnknownQueue(RunError):
    """The database has no message queue of this name."""


class QueueExists(RunError):
    """There is a message queue of this name with other settings."""


class QueueInUse(RunError):
    """The message queue has the dead letters of another one, so that it cannot be deleted."""


class MessageNotFound(RunError):
    """The message queue has no message of this id."""

    def __init__(self, queue: str, message_id: int) -> None:
        super().__init__(
            f"queue {queue} has no message {message_id}: it was acknowledged or cancelled, or is a "
            f"dead letter (see `holdfast queue dead {queue}`), or never was in this queue"
        )


class MessageInFlight(RunError):
    """A receiver has the message, so that it cannot be cancelled or changed now."""


class AmbiguousWorkflow(RunError):
    """Several apps have a workflow of this name, and the caller did not name the app."""

    def __init__(self, workflow: str, apps: Sequence[str]) -> None:
        some = " or ".join(f"{app}/{workflow}" for app in apps)
        super().__init__(
            f"workflow {workflow!r} is in {len(apps)} apps: name the app as well, as in {some}"
        )
        self.workflow, self.apps = workflow, tuple(apps)


class RunFailed(RunError):
    """The run ended with an error; `error` is its record."""

    def __init__(self, run_id: UUID, error: ErrorInfo) -> None:
        super().__init__(f"run {run_id} failed: {error}")
        self.run_id, self.error = run_id, error
        add_recorded(self, error)

    def matches(self, kind: type[BaseException]) -> bool:
        """Return True if the recorded error was of this class or of a subclass of it."""
        return self.error.matches(kind)


class RunCancelled(RunError):
    """The run ended because a cancel was asked for."""

    def __init__(self, run_id: UUID) -> None:
        super().__init__(f"run {run_id} was cancelled")
        self.run_id = run_id


class RunTerminated(RunError):
    """The run was terminated: its code had no chance to clean up."""

    def __init__(self, run_id: UUID) -> None:
        super().__init__(f"run {run_id} was terminated")
        self.run_id = run_id


class RunTimedOut(RunError):
    """The run had not ended at its deadline."""

    def __init__(self, run_id: UUID) -> None:
        super().__init__(f"run {run_id} was ended at its deadline")
        self.run_id = run_id


ENDED_AS: Final[dict[str, type[RunCancelled | RunTerminated | RunTimedOut]]] = {
    "cancelled": RunCancelled,
    "terminated": RunTerminated,
    "timed_out": RunTimedOut,
}
"""The errors of runs that ended without an error of their code, by status."""


class RunExists(RunError):
    """Another run has the id or the key: of another workflow, or of another parent."""

    def __init__(self, run_id: UUID, why: str | None = None) -> None:
        super().__init__(
            why or f"run {run_id} exists, and is not a child of this run: use another key"
        )
        self.run_id = run_id

    @classmethod
    def of_another(cls, run_id: UUID, workflow: str, wanted: str) -> RunExists:
        """Return the error for an id that a run of another workflow has."""
        return cls(
            run_id, f"run {run_id} is one of workflow {workflow}, not of {wanted}: use another id"
        )


class RunActive(RunError):
    """The start was refused, because a run with the same singleton key has not ended: `run_id`."""

    def __init__(self, run_id: UUID, message: str) -> None:
        super().__init__(message)
        self.run_id = run_id

    @classmethod
    def of(cls, workflow: str, run_id: UUID) -> RunActive:
        """Return the error for a start of a workflow while this run is active."""
        return cls(
            run_id,
            f"run {run_id} of workflow {workflow} is active with the same key: "
            "wait for its end, or cancel it",
        )


class StartThrottled(RunError):
    """The start was refused: the workflow was started as often as its throttle allows.

    From `until` on, a moment in UTC, a start with the same key is possible.
    """

    def __init__(self, until: datetime, message: str) -> None:
        super().__init__(message)
        self.until = until

    @classmethod
    def of(cls, workflow: str, until: datetime) -> StartThrottled:
        """Return the error for a start of a workflow before this moment."""
        return cls(
            until,
            f"workflow {workflow} has been started as often as its throttle allows: start it "
            f"again after {until.isoformat(timespec='milliseconds')}",
        )


class ForkRefused(RunError):
    """The run cannot be forked or retried as asked; nothing was started."""

    def __init__(self, run_id: UUID, reason: str) -> None:
        super().__init__(f"run {run_id} cannot be forked or retried: {reason}")
        self.run_id, self.reason = run_id, reason


class RescheduleRefused(RunError):
    """The run cannot be rescheduled as asked; nothing of it was changed."""

    def __init__(self, run_id: UUID, reason: str) -> None:
        super().__init__(f"run {run_id} cannot be rescheduled: {reason}")
        self.run_id, self.reason = run_id, reason


class ApprovalNotFound(RunError):
    """The run has never asked for an approval with this key.

    `similar` are the keys of open approvals with this id that tasks of the run have asked for.
    """

    def __init__(self, run_id: UUID, key: str, similar: Sequence[str] = ()) -> None:
        way_out = "`holdfast approvals list` names those that are open"
        if similar:
            way_out = f"did you mean {' or '.join(map(repr, similar))}?"
        super().__init__(f"run {run_id} has never asked for an approval {key!r}; {way_out}")
        self.run_id, self.key, self.similar = run_id, key, tuple(similar)


class ApprovalDecided(RunError):
    """Another decision was first: `approved` and `by` say which."""

    def __init__(self, run_id: UUID, key: str, approved: bool, by: str | None) -> None:
        done = "approved" if approved else "rejected"
        super().__init__(
            f"approval {key} of run {run_id} was {done}{f' by {by}' if by else ''} before"
        )
        self.run_id, self.key, self.approved, self.by = run_id, key, approved, by


class ApprovalClosed(RunError):
    """The run does not wait for this decision any more: it timed out, or the run has ended.

    `asked_by` is the run that retries it, or a later retry, if that one waits for the decision.
    """

    def __init__(self, run_id: UUID, key: str, asked_by: UUID | None = None) -> None:
        retry = "" if asked_by is None else f"; its retry waits for it, run {asked_by}"
        super().__init__(
            f"approval {key} of run {run_id} is closed: the run does not wait for it any more"
            + retry
        )
        self.run_id, self.key, self.asked_by = run_id, key, asked_by


class WebhookNotFound(RunError):
    """No run has opened a webhook with this URL."""

    def __init__(self) -> None:
        super().__init__("no run has opened a webhook with this URL, or retention removed the run")


class WebhookClosed(RunError):
    """The run takes no POST at this URL any more: it closed the webhook, or has ended."""

    def __init__(self, run_id: UUID, key: str) -> None:
        super().__init__(f"webhook {key} of run {run_id} is closed, and nothing was posted to it")
        self.run_id, self.key = run_id, key


class UpdateRejected(RunError):
    """The run refused the update, and nothing of it happened; `error` says why.

    Of a call of an entity, `entity` is its name and key; in a workflow, `key` is that of the call.
    """

    def __init__(
        self,
        run_id: UUID,
        name: str,
        error: ErrorInfo,
        key: str | None = None,
        entity: str | None = None,
    ) -> None:
        of = f"run {run_id}" if entity is None else f"{entity} (run {run_id})"
        super().__init__(f"{of} refused update {name}: {error}")
        self.run_id, self.name, self.error, self.key, self.entity = run_id, name, error, key, entity


class UpdateFailed(RunError):
    """The run accepted the update and failed to carry it out; `error` says why.

    Of a call of an entity, `entity` is its name and key; in a workflow, `key` is that of the call.
    """

    def __init__(
        self,
        run_id: UUID,
        name: str,
        error: ErrorInfo,
        key: str | None = None,
        entity: str | None = None,
    ) -> None:
        of = f"run {run_id}" if entity is None else f"{entity} (run {run_id})"
        super().__init__(f"update {name} of {of} failed: {error}")
        self.run_id, self.name, self.error, self.key, self.entity = run_id, name, error, key, entity


class TokenUnknown(RunError):
    """No attempt of an activity has this token any more: it ended, or another followed it."""

    def __init__(self, token: str, why: str = "it has ended, or was followed") -> None:
        super().__init__(
            f"token {token!r} does not belong to an open attempt of an activity: {why}"
        )
        self.token = token


class WorkerLost(HoldfastError):
    """The worker of an activity's last attempt was lost."""


class ResultTimeout(RunError, TimeoutError):
    """The run had not ended, or not answered, when the caller stopped waiting; it continues."""

    def __init__(self, run_id: UUID, seconds: float, awaited: str = "ended") -> None:
        super().__init__(f"run {run_id} had not {awaited} after {seconds:g} s; it continues")
        self.run_id, self.seconds = run_id, seconds


class StreamClosed(HoldfastError):
    """Nothing more can be written: the attempt has ended, lost its lease or closed the stream."""


class PayloadError(HoldfastError, ValueError):
    """A value cannot be stored as JSON."""


class PayloadLocked(PayloadError):
    """A value was encoded by a codec, or with a key, that this program does not have.

    Or it is an object that this program cannot read.
    """


class InvalidInput(PayloadError):
    """A value does not fit the type that the code declares."""


class SignatureInvalid(InvalidInput):
    """The signature of a request is missing or wrong, or the request is too old."""


class CallFailed(HoldfastError):
    """A call of a workflow has failed for good; `error` is the record of why."""

    kind = "call"

    def __init__(self, key: str, error: ErrorInfo) -> None:
        super().__init__(f"{self.kind} {key} failed: {error}")
        self.key, self.error = key, error
        add_recorded(self, error)

    def matches(self, kind: type[BaseException]) -> bool:
        """Return True if the recorded error was of this class or of a subclass of it."""
        return self.error.matches(kind)


class StepFailed(CallFailed):
    """A step's attempts are exhausted. `error` is the record of the last one."""

    kind = "step"


class StepTimedOut(StepFailed):
    """The last attempt of a step ran past its timeout."""


class ActivityFailed(CallFailed):
    """An activity's attempts are exhausted. `error` is the record of the last one."""

    kind = "activity"


class ActivityTimedOut(ActivityFailed):
    """The last attempt of an activity, or all of them together, ran past a timeout."""


class ChildFailed(CallFailed):
    """A child run did not complete: `status` says how it ended, `child_run_id` which it is.

    `status` is "failed", "cancelled", "timed_out", "terminated", "refused" if it could not be
    started, or "deleted" if it was deleted before a retry of its parent, so that nobody knows how
    it ended.
    """

    kind = "child"

    def __init__(self, key: str, error: ErrorInfo, status: str, child_run_id: UUID) -> None:
        super().__init__(key, error)
        self.status, self.child_run_id = status, child_run_id


class DeterminismError(BaseException):
    """Workflow code did something that a replay cannot repeat, or differs from its log.

    Not an `Exception`, so that no `except Exception` in workflow code hides it. It does not
    fail the run: the run is stuck, shown as such, and tried again with backoff, so that a
    corrected deployment heals it. `line` is that of the user's code, as `shop.py:12 in order`, and
    `key` that of the call in the log; None if they are not known.
    """

    def __init__(self, message: str, *, line: str | None = None, key: str | None = None) -> None:
        super().__init__(message)
        self.line, self.key = line, key
