"""How a caller says which run is meant, and what it is sent."""

from __future__ import annotations

from typing import Protocol, TypeAlias, cast
from uuid import UUID

import msgspec

from holdfast.codec import encode
from holdfast.definitions.app import AnyWorkflow
from holdfast.definitions.workflows import Workflow
from holdfast.errors import InvalidInput
from holdfast.names import check_signal_name
from holdfast.texts import check_id
from holdfast.types import NewSignal


class Named(Protocol):
    """A workflow, as far as its name with its app goes."""

    @property
    def full_name(self) -> str: ...


RunRef: TypeAlias = UUID | str | tuple[Named | str, str]
"""A run's id (as a UUID or as text), or the workflow and the key that it was started with.

A workflow is given itself, as `app/name`, or by its name alone where one app has it.
"""


class Signal(msgspec.Struct, frozen=True):
    """A signal to send with others; see `Client.signal_many`."""

    run: RunRef
    name: str
    payload: object = None
    signal_id: str | None = None

    def encode(self, run_id: UUID) -> NewSignal:
        """Check and encode it for a run. Raises InvalidName, InvalidInput and PayloadError."""
        if self.signal_id is not None:
            check_id("signal id", self.signal_id)
        payload = encode(self.payload)
        return NewSignal(run_id, check_signal_name(self.name), payload, self.signal_id)


def given_workflow(run: RunRef) -> AnyWorkflow | None:
    """Return the workflow that is given with a key, None if only its name is given, or an id."""
    if isinstance(run, tuple) and isinstance(run[0], Workflow):
        return cast("AnyWorkflow", run[0])
    return None


def read_id(run: UUID | str) -> UUID:
    """Return a run's id. Raises InvalidInput for what is none."""
    if isinstance(run, UUID):
        return run
    try:
        return UUID(run)
    except ValueError:
        raise InvalidInput(f"{run!r} is no run's id: it is a UUID") from None
