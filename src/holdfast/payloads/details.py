"""Which parts of a log's entries are payloads, by event type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

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
from holdfast.payloads.encoding import Payloads, size_of
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
_read: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_signals: Final = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
_write: Final = msgspec.json.Encoder().encode


def seal_event(payloads: Payloads, event: Event) -> Event:
    """Return an entry whose payloads are encoded. Raises PayloadError as `Payloads.seal` does."""
    fields = _FIELDS.get(event.type)
    if fields is None or event.details is None:
        return event
    if not payloads.codecs and size_of(event.details) <= payloads.max_bytes:
        return event
    details = _read(event.details)
    for name, what in fields.items():
        if name in details:
            named = what.format(event.key)
            details[name] = msgspec.Raw(_seal(payloads, name, named, bytes(details[name])))
    return Event(event.type, event.key, _write(details).decode(), event.at)


def open_event(payloads: Payloads, event: Event) -> Event:
    """Return an entry whose payloads are decoded."""
    if event.details is None:
        return event
    opened = payloads.open(event.details)
    return event if opened is event.details else Event(event.type, event.key, opened, event.at)


def _seal(payloads: Payloads, name: str, what: str, data: bytes) -> bytes:
    text = data.decode()
    if text == "null":
        return data
    if name == "error":
        return payloads.seal_error(text).encode()
    if name == "signals":  # they were accepted before
        signals = _read_signals(data)
        for signal in signals:
            signal["input"] = msgspec.Raw(payloads.seal(bytes(signal["input"]).decode()).encode())
        return _write(signals)
    return payloads.seal(text, what).encode()
