"""A run as its ledgers and its context see it, and what a ledger is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar
from uuid import UUID

from holdfast.definitions.workflows import Workflow
from holdfast.runtime.code.history import History
from holdfast.runtime.log.virtual_log import Tells
from holdfast.runtime.loop.loop import WorkflowLoop
from holdfast.types import Event, Value


class Record(Protocol):
    """Adds a fact to a run's log."""

    def __call__(self, kind: str, key: str, text: str | None, /) -> None:
        """Add an event of a type, with its key and its details."""
        ...


class RunInfo(Value, frozen=True):
    """Which run a turn belongs to.

    `attempt` is the number of claims since the last progress. `started_at` is the moment of the
    first claim, in microseconds since 1970 UTC; a fork has that of its origin, and as
    `first_claimed_at` its own. `parent_run_id` is told of the run's end. `key` and `headers` are
    those that the run was started with. `tells` is what a log that begins now says of the
    exceptions that the code handles.
    """

    run_id: UUID
    name: str
    version: int
    attempt: int
    started_at: int
    parent_run_id: UUID | None = None
    key: str | None = None
    headers: Mapping[str, str] | None = None
    first_claimed_at: int | None = None
    forked_at: int | None = None
    tells: Tells = "which"

    @property
    def began(self) -> int:
        """A moment that tells the run from others that have had its id, the same in each claim."""
        return self.started_at if self.forked_at is None else self.forked_at


class Ledger:
    """The part of a run that one capability keeps: what the log has of it, what the code waits for.

    It learns the event types in `facts` before the code is fed any of them. Those in `delivers` it
    is given one by one, in the order of the log. Recorded calls that the code has not made yet are
    kept in the run's history instead, because all capabilities share one namespace of keys.
    """

    facts: ClassVar[frozenset[str]] = frozenset()
    delivers: ClassVar[frozenset[str]] = frozenset()

    __slots__ = ()

    if TYPE_CHECKING:  # else a ledger could not be a struct

        def __init__(self, run: Run) -> None: ...

    @property
    def awaited(self) -> tuple[str, ...]:
        """The names of what the code waits for: the run is woken when one of them comes."""
        return ()

    def learn(self, event: Event) -> None:
        """Learn a fact from the log."""

    def deliver(self, event: Event) -> None:
        """Deliver an event to the code."""

    def called(self, key: str) -> str | None:
        """Describe the open call that the code has made with this key; None if there is none."""
        return None

    def close(self) -> None:
        """Let go of the run, which holds this ledger, if that is kept when the run is closed."""


L = TypeVar("L", bound=Ledger)


class Run(Protocol):
    """One run with code in execution, as its ledgers and its context see it.

    `record` adds a fact to its log. Its random numbers derive from `seed`. Its code knows it by the
    id of its first attempt.
    """

    workflow: Workflow[Any, object]
    info: RunInfo
    seed: UUID
    loop: WorkflowLoop
    history: History
    cancel_requested: bool
    record: Record

    @property
    def known_as(self) -> UUID:
        """The id of the run, or of the run that was its first attempt."""
        ...

    def ledger(self, kind: type[L]) -> L:
        """Return the run's ledger of a kind. Made on first use: most runs only call steps."""
        ...

    def check_unclaimed(self, key: str, recorded: str) -> None:
        """Raise DeterminismError if the code waits for another call under this key."""
        ...


class ContextPart:
    """Base of the parts of `Context`: each capability has one, in its own module."""

    __slots__ = ("_run",)

    def __init__(self, run: Run) -> None:
        self._run = run
