"""What all values have in common, and the smallest of them."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from holdfast.types.classes import class_name

JSON: TypeAlias = "dict[str, JSON] | list[JSON] | str | int | float | bool | None"

AttributeValue: TypeAlias = str | int | float | bool
"""What an attribute of a run may be. A number without a fraction is a whole one: 5.0 is 5."""

RunKind: TypeAlias = Literal["workflow", "flow"]
EndStatus: TypeAlias = Literal[
    "completed", "failed", "cancelled", "timed_out", "terminated", "continued"
]
Status: TypeAlias = Literal["running", EndStatus]
State: TypeAlias = Literal["queued", "running", "waiting", "stuck", "paused", EndStatus]

OPEN_STATES: Final[tuple[State, ...]] = ("queued", "running", "waiting", "stuck", "paused")

PRIORITIES: Final = range(5)  # 0 is the most urgent
DEFAULT_PRIORITY: Final = 2
DEFAULT_QUEUE: Final = "default"


_CAUSED: Final = "\nThe above exception led to the following exception:\n\n"


class Value(msgspec.Struct, frozen=True):
    """Base of the value classes: immutable, compared by content."""


class Event(Value, frozen=True, gc=False):
    """One entry of a log. `details` is JSON text; `at` is when the fact became true."""

    type: str
    key: str | None
    details: str | None
    at: int


class ErrorInfo(Value, frozen=True, omit_defaults=True):
    """An exception as it is recorded.

    `kind` is the class's qualified name (`builtins.ValueError`); `bases` are the qualified
    names of the classes it derives from, so that `matches` knows subclasses. `data` is what the
    exception had as its attribute `data`, if that was a mapping of texts to plain JSON values.
    """

    kind: str
    message: str
    traceback: str = ""
    bases: tuple[str, ...] = ()
    cause: ErrorInfo | None = None
    data: dict[str, object] | None = None

    def __str__(self) -> str:
        name = self.kind.removeprefix("builtins.")
        return f"{name}: {self.message}" if self.message else name

    def format(self) -> str:
        """Return the recorded tracebacks as Python prints them, that of the cause first."""
        parts = [] if self.cause is None else [self.cause.format(), _CAUSED]
        return "".join([*parts, self.traceback or f"{self}\n"])

    def matches(self, kind: type[BaseException]) -> bool:
        """Return True if the exception was a `kind` or a subclass of it."""
        known = (self.kind, *self.bases)
        if class_name(kind) in known:
            return True
        # Older releases recorded the classes of a file that was run under this name.
        return kind.__module__ != "builtins" and f"__main__.{kind.__qualname__}" in known


class Notice(Value, frozen=True, gc=False):
    """A wake-up to send once the change is committed: a payload for a topic's listeners."""

    topic: str
    payload: str


class ReadCheck(Value, frozen=True):
    """The database that lists are read from: its address, and why it cannot be used, if so.

    `lag_seconds` is how far it is behind; None if it does not say. One that is not a standby is the
    database itself.
    """

    address: str
    trouble: str | None = None
    is_standby: bool = True
    lag_seconds: float | None = None


class HintCheck(Value, frozen=True):
    """What carries hints to workers: its address, and if it cannot be used, why and the way out."""

    address: str
    trouble: str | None = None
    way_out: str | None = None


class HintUse(Value, frozen=True):
    """How a store uses hints: if they arrive now (None: it has not tried), and how many there were.

    `listens` says if notifications arrive as well. `claimed` are those after which the worker has
    looked for work, `refused` those that PostgreSQL told instead.
    """

    works: bool | None
    sent: int = 0
    refused: int = 0
    read: int = 0
    claimed: int = 0
    listens: bool = False
