"""A run as its ledgers and its context know it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias, TypeVar
from uuid import UUID

from holdfast.definitions.workflows import Workflow
from holdfast.runtime.code.history import History
from holdfast.runtime.loop.loop import WorkflowLoop
from holdfast.types import Event, Value

Record: TypeAlias = Callable[[str, str, "str | None"], None]


class RunInfo(Value, frozen=True):
    """Which run a turn belongs to.

    `attempt` counts the claims since the last progress, `started_at` is the moment of the first
    one, in microseconds since 1970 UTC. `parent_run_id` is the run that is told of its end. `key`
    and `headers` are those that the run was started with.
    """

    run_id: UUID
    name: str
    version: int
    attempt: int
    started_at: int
    parent_run_id: UUID | None = None
    key: str | None = None
    headers: Mapping[str, str] | None = None


class Ledger:
    """What one capability has of a run: what the log says of it, and what the code waits for.

    It learns its `facts` before they are fed, and is delivered the types in `delivers` in the order
    of the log. What the log has and the code has not called is kept in
    the run's history, because the keys of all capabilities are one namespace.
    """

    facts: ClassVar[frozenset[str]] = frozenset()
    delivers: ClassVar[frozenset[str]] = frozenset()

    __slots__ = ()

    def __init__(self, run: Run) -> None: ...

    @property
    def awaited(self) -> tuple[str, ...]:
        """What others may do to wake the code."""
        return ()

    def learn(self, event: Event) -> None:
        """Take in a fact that the log has."""

    def deliver(self, event: Event) -> None:
        """Give the code what an event brings."""

    def called(self, key: str) -> str | None:
        """Return what the code has called under a key and waits for, None if nothing."""
        return None


L = TypeVar("L", bound=Ledger)


class Run:
    """One run whose code is in execution, as its ledgers and its context know it.

    `record` adds a fact to its log, and its chance derives from `seed`. `ledgers` are those in
    use; a closed run lets go of them.
    """

    __slots__ = (
        "cancel_requested",
        "history",
        "id",
        "info",
        "ledgers",
        "loop",
        "record",
        "seed",
        "workflow",
    )

    def __init__(
        self, workflow: Workflow[Any, object], info: RunInfo, loop: WorkflowLoop, record: Record
    ) -> None:
        self.workflow, self.info, self.loop, self.record = workflow, info, loop, record
        self.id, self.seed = str(info.run_id), info.run_id
        self.history = History(loop)
        self.cancel_requested = False
        self.ledgers: dict[type[Ledger], Any] = {}

    def ledger(self, kind: type[L]) -> L:
        """Return the run's ledger of a kind, made at its first use: most runs only call steps."""
        found: L | None = self.ledgers.get(kind)
        if found is None:
            found = self.ledgers[kind] = kind(self)
        return found

    def find(self, kind: type[L]) -> L | None:
        """Return the run's ledger of a kind, None if it has not been used."""
        found: L | None = self.ledgers.get(kind)
        return found

    def check_unclaimed(self, key: str, recorded: str) -> None:
        """Raise DeterminismError if the code waits for another call under the key of an end."""
        for ledger in self.ledgers.values():
            if (found := ledger.called(key)) is not None:
                self.history.check(key, recorded, found)


class ContextPart:
    """The base of the parts of a `Context`: one a capability, beside what carries it out."""

    __slots__ = ("_run",)

    def __init__(self, run: Run) -> None:
        self._run = run
