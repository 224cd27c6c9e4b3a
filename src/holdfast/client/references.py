"""How a caller says which run is meant."""

from __future__ import annotations

from typing import Protocol, TypeAlias
from uuid import UUID

import msgspec

from holdfast.codec import encode
from holdfast.errors import InvalidInput
from holdfast.ids import keyed_run_id
from holdfast.names import check_signal_name
from holdfast.texts import check_text
from holdfast.types import NewSignal


class Named(Protocol):
    """A workflow, as far as its name goes."""

    @property
    def name(self) -> str: ...


RunRef: TypeAlias = UUID | str | tuple[Named | str, str]
"""A run's id (as a UUID or as text), or the workflow and the key that it was started with."""


class Signal(msgspec.Struct, frozen=True):
    """A signal to send with others; see `Client.signal_many`."""

    run: RunRef
    name: str
    payload: object = None
    signal_id: str | None = None

    def encode(self) -> NewSignal:
        """Check and encode it. Raises InvalidName, InvalidInput and PayloadError."""
        if self.signal_id is not None:
            check_id("signal id", self.signal_id)
        payload = encode(self.payload)
        return NewSignal(resolve(self.run), check_signal_name(self.name), payload, self.signal_id)


def resolve(run: RunRef) -> UUID:
    """Return the id of the run that is meant. Raises InvalidInput for what is no id."""
    if isinstance(run, UUID):
        return run
    if isinstance(run, tuple):
        workflow, key = run
        return keyed_run_id(name_of(workflow), key)
    try:
        return UUID(run)
    except ValueError:
        raise InvalidInput(f"{run!r} is no run's id: it is a UUID") from None


def name_of(workflow: Named | str) -> str:
    """Return the name of a workflow that is given itself or by name."""
    return workflow if isinstance(workflow, str) else workflow.name


def check_id(what: str, text: str) -> str:
    """Return an id that a caller has made up. Raises InvalidInput where it cannot be one."""
    if text == "":
        raise InvalidInput(f"the {what} is empty: it would be everybody's")
    return check_text(what, text)
