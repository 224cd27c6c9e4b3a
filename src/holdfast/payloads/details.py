"""Which parts of a log's entries are payloads, by event type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

import msgspec

from holdfast.events import (
    ACTIVITY_SCHEDULED,
    CHILD_STARTED,
    CONTINUED,
    SIGNAL_SENT,
    STEP_COMPLETED,
    STEP_FAILED,
    STEP_RETRY,
    UPDATE_COMPLETED,
    UPDATE_REJECTED,
    VALUE_SET,
)
from holdfast.payloads.encoding import Payloads
from holdfast.payloads.outgoing import Outgoing
from holdfast.types import Event

# Entries that workers write. What others write, the store makes of values that it was given.
# What a value is called in errors; those of steps' results are named where they become failures.
_FIELDS: Final[Mapping[str, Mapping[str, str]]] = {
    STEP_COMPLETED: {"result": "it"},
    STEP_FAILED: {"error": ""},
    STEP_RETRY: {"error": ""},
    ACTIVITY_SCHEDULED: {"input": "the input of activity {}"},
    CHILD_STARTED: {"input": "the input of child {}"},
    SIGNAL_SENT: {"input": "the payload of signal {}"},
    VALUE_SET: {"value": "the value {}"},
    UPDATE_COMPLETED: {"result": "the result of update {}", "error": ""},
    UPDATE_REJECTED: {"error": ""},
    CONTINUED: {"input": "the input of the next run", "signals": ""},
}
# The field with the run that gets the payload, and so owns its object.
_OWNERS: Final[Mapping[str, str]] = {
    CHILD_STARTED: "child_run_id",
    SIGNAL_SENT: "run_id",
    CONTINUED: "run_id",
}
_text: Final = msgspec.json.Decoder(str).decode
_read: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_signals: Final = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
_write: Final = msgspec.json.Encoder().encode


def seal_event(outgoing: Outgoing, event: Event, run_id: UUID) -> Event:
    """Return an entry of a run whose payloads are encoded. Raises PayloadError as `seal` does."""
    fields = _FIELDS.get(event.type)
    if fields is None or event.details is None or not outgoing.payloads.needs_seal(event.details):
        return event
    details = _read(event.details)
    owner = run_id if event.type not in _OWNERS else UUID(_text(details[_OWNERS[event.type]]))
    for name, what in fields.items():
        if name in details:
            text, named = bytes(details[name]).decode(), what.format(event.key)
            details[name] = msgspec.Raw(_seal(outgoing, name, text, named, owner, run_id).encode())
    return Event(event.type, event.key, _write(details).decode(), event.at)


def open_event(payloads: Payloads, event: Event) -> Event:
    """Return an entry whose payloads are decoded."""
    if event.details is None:
        return event
    opened = payloads.open(event.details)
    return event if opened is event.details else Event(event.type, event.key, opened, event.at)


def _seal(outgoing: Outgoing, name: str, text: str, what: str, owner: UUID, run_id: UUID) -> str:
    if text == "null":
        return text
    if name == "error":
        return outgoing.payloads.seal_error(text)
    if name == "signals":  # they were accepted before
        signals = _read_signals(text)
        for signal in signals:
            sealed = outgoing.seal(bytes(signal["input"]).decode(), "a signal", owner, run_id)
            signal["input"] = msgspec.Raw(sealed.encode())
        return _write(signals).decode()
    return outgoing.seal(text, what, owner, run_id)
