"""Every error that holdfast raises, in one tree.

```
HoldfastError
├── ConfigurationError            a definition or an option that cannot work
│   └── InvalidName               a name outside its alphabet
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
│   └── TransientDatabaseError    safe to try again: deadlock, serialization, lock timeout
├── RunError                      one run, as a caller sees it
│   ├── RunNotFound
│   ├── RunEnded                  it takes no more signals or cancels
│   ├── UnknownWorkflow
│   ├── RunFailed                 its result is an error
│   ├── RunCancelled
│   ├── RunTerminated
│   ├── RunTimedOut
│   └── ResultTimeout             the caller stopped waiting (also a TimeoutError)
├── PayloadError                  a value that cannot be stored (also a ValueError)
│   └── InvalidInput              a value that does not fit the declared type
└── StepFailed                    a step's attempts are exhausted
    └── StepTimedOut
```

Errors that workflow code must not catch derive from `BaseException`: `DeterminismError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from holdfast.types import ErrorInfo


class HoldfastError(Exception):
    """Something holdfast refuses or cannot do; the message says what to do about it."""


class ConfigurationError(HoldfastError):
    """A definition or an option cannot work."""


class InvalidName(ConfigurationError):
    """A name is outside the alphabet of its kind."""


class DatabaseError(HoldfastError):
    """The database cannot be used as it is."""


class InvalidDatabaseURL(DatabaseError):
    """The database URL cannot be understood."""


class DatabaseUnavailable(DatabaseError, ConnectionError):
    """The database does not answer, or refuses this login."""


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


class TransientDatabaseError(DatabaseError):
    """The database gave up on this transaction; the same call may be made again."""


class RunError(HoldfastError):
    """What a caller learns about one run."""

    run_id: UUID | None = None


class RunNotFound(RunError):
    """No run has this id."""

    def __init__(self, run_id: UUID) -> None:
        super().__init__(f"no run {run_id}: it was never started here, or retention removed it")
        self.run_id = run_id


class RunEnded(RunError):
    """The run has ended and takes nothing more."""

    def __init__(self, run_id: UUID, status: str) -> None:
        super().__init__(f"run {run_id} has ended ({status}) and takes nothing more")
        self.run_id, self.status = run_id, status


class UnknownWorkflow(RunError):
    """No workflow of this name is registered."""


class RunFailed(RunError):
    """The run ended with an error; `error` is its record."""

    def __init__(self, run_id: UUID, error: ErrorInfo) -> None:
        super().__init__(f"run {run_id} failed: {error}")
        self.run_id, self.error = run_id, error

    def matches(self, kind: type[BaseException]) -> bool:
        """Say whether the recorded error was of this class or of a subclass of it."""
        return self.error.matches(kind)


class RunCancelled(RunError):
    """The run ended because a cancel was asked for."""

    def __init__(self, run_id: UUID) -> None:
        super().__init__(f"run {run_id} was cancelled")
        self.run_id = run_id


class RunTerminated(RunError):
    """The run was ended from outside, without a chance to clean up."""

    def __init__(self, run_id: UUID) -> None:
        super().__init__(f"run {run_id} was terminated")
        self.run_id = run_id


class RunTimedOut(RunError):
    """The run was still going at its deadline."""

    def __init__(self, run_id: UUID) -> None:
        super().__init__(f"run {run_id} was ended at its deadline")
        self.run_id = run_id


class ResultTimeout(RunError, TimeoutError):
    """The run had not ended when the caller stopped waiting; it goes on."""

    def __init__(self, run_id: UUID, seconds: float) -> None:
        super().__init__(f"run {run_id} had not ended after {seconds:g} s; it goes on")
        self.run_id, self.seconds = run_id, seconds


class PayloadError(HoldfastError, ValueError):
    """A value cannot be stored as JSON."""


class InvalidInput(PayloadError):
    """A value does not fit the type that the code declares."""


class StepFailed(HoldfastError):
    """A step's attempts are exhausted. `error` is the record of the last one."""

    def __init__(self, key: str, error: ErrorInfo) -> None:
        super().__init__(f"step {key} failed: {error}")
        self.key, self.error = key, error

    def matches(self, kind: type[BaseException]) -> bool:
        """Say whether the recorded error was of this class or of a subclass of it."""
        return self.error.matches(kind)


class StepTimedOut(StepFailed):
    """The last attempt of a step ran past its timeout."""


class DeterminismError(BaseException):
    """Workflow code did what cannot be repeated on replay, or differs from its log.

    Not an `Exception`, so that no `except Exception` in workflow code hides it. It does not
    fail the run: the run is stuck, shown as such, and tried again with backoff, so that a
    corrected deployment heals it.
    """
