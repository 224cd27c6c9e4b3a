"""The base of what can be started as a run: a workflow, or a flow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Generic, Never, TypeAlias, TypeVar

import msgspec

from holdfast.definitions.options import option
from holdfast.types import PRIORITIES, RunKind, StartRules
from holdfast.values.durations import Duration, seconds
from holdfast.values.names import check_queue_name
from holdfast.values.numbers import whole_number

In_contra = TypeVar("In_contra", contravariant=True)
Out_co = TypeVar("Out_co", covariant=True)


class Startable(ABC, Generic[In_contra, Out_co]):
    """A workflow or a flow, as clients need it to start a run and to read its output.

    `full_name` is `app/name`. Times are in seconds, None for never.
    """

    kind: ClassVar[RunKind]

    name: str
    full_name: str
    version: int
    queue: str
    priority: int
    timeout_seconds: float | None
    retention_seconds: float | None
    rules: StartRules | None  # for its starts

    def _set_options(
        self, of: str, version: int, priority: int, queue: str, retention: Duration | None
    ) -> None:
        """Keep what workflows and flows both take. Raises ConfigurationError for wrong options."""
        self.version = whole_number(version, of, "version", 1)
        self.priority = whole_number(priority, of, "priority", 0, PRIORITIES[-1])
        with option(of, "queue"):
            self.queue = check_queue_name(queue)
        with option(of, "retention"):
            self.retention_seconds = None if retention is None else seconds(retention)

    @property
    @abstractmethod
    def input_annotation(self) -> object:
        """Return the declared type of an input; Any without one, NoneType if it takes none."""

    @property
    @abstractmethod
    def output_annotation(self) -> object:
        """Return the declared type of an output; Any without one."""

    @abstractmethod
    def encode_input(self, value: object = None) -> str:
        """Encode an input, so that a bad one is refused before a run exists.

        Raises InvalidInput if it does not fit the declared type, PayloadError if it cannot be
        stored.
        """

    @abstractmethod
    def decode_input(self, text: str) -> object:
        """Decode an input into the declared type. Raises InvalidInput if it does not fit."""

    @abstractmethod
    def decode_output(self, text: str | bytes | msgspec.Raw) -> Out_co:
        """Decode an output into the declared type. Raises InvalidInput if it does not fit."""

    @abstractmethod
    def of_version(self, version: int) -> AnyStartable | None:
        """Return the definition of another version in the same program, None if it has none."""


AnyStartable: TypeAlias = Startable[Never, object]
