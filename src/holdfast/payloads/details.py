"""Which parts of a log's entries are payloads, by event type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

import msgspec

from holdfast.events import CHILD_STARTED, CONTINUED, SIGNAL_SENT, TYPES
from holdfast.payloads.encoding import Payloads
from holdfast.payloads.outgoing import Outgoing
from holdfast.types import Event

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
    fields = TYPES[event.type].payloads
    if not fields or event.details is None or not outgoing.payloads.needs_seal(event.details):
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
