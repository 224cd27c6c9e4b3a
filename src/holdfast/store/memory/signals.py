"""Signals and updates: how they come into logs, and who is told that nobody answers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from uuid import UUID

import msgspec

from holdfast.codec import raw
from holdfast.events import SIGNAL_RECEIVED, UPDATE_ACCEPTED, UPDATE_ENDS, is_update, read_signal
from holdfast.store.memory import details
from holdfast.store.memory.chains import newest
from holdfast.store.memory.forwarding import forward_signal
from holdfast.store.memory.large_payloads import use_payloads
from holdfast.store.memory.payloads import check_signal
from holdfast.store.memory.tables import Tables, distinct
from holdfast.store.port import FORWARDS_TOPIC
from holdfast.types import (
    UPDATE_REPLY,
    Delivered,
    Delivery,
    EndStatus,
    ErrorInfo,
    Event,
    NewSignal,
    Notice,
    update_topic,
)
from holdfast.values.answers import answer_id

_RUN = re.compile(r"run/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")  # that an answer is for


def send_signals(tables: Tables, now: int, signals: Sequence[NewSignal]) -> Delivered:
    """Append each signal, and wake its run if the run awaits that name."""
    for signal in signals:
        check_signal(signal)
    return pass_signals(tables, now, signals)


def pass_signals(tables: Tables, now: int, signals: Sequence[NewSignal]) -> Delivered:
    """Append signals whose values were checked before."""
    answer = Delivered([], [])
    for signal in signals:
        outcome = _signal_outcome(tables, signal)
        answer.outcomes.append(outcome)
        if outcome == "delivered":
            answer.notices.extend(_deliver(tables, now, signal))
    return Delivered(answer.outcomes, distinct(answer.notices))


def _signal_outcome(tables: Tables, signal: NewSignal) -> Delivery:
    if signal.run_id not in tables.runs:
        return "missing"
    # Before the status is looked at: if the run took this signal and then ended, a repeated call
    # must be told that the signal was delivered.
    if signal.signal_id is not None and has_signal(tables, signal.run_id, signal.signal_id):
        return "duplicate"
    return "delivered" if tables.is_running(signal.run_id) else "ended"


def has_signal(tables: Tables, run_id: UUID, signal_id: str) -> bool:
    """Return True if a run's log has a signal of this id."""
    events = (row.event for row in tables.logs[run_id])
    return any(event.type == "SignalReceived" and event.key == signal_id for event in events)


def _deliver(tables: Tables, now: int, signal: NewSignal) -> list[Notice]:
    told = details.write(signal_name=signal.name, input=raw(signal.payload))
    topic = signal.name
    if signal.update:
        update = details.write(update=True, reply_to=signal.reply_to)
        told, topic = f"{told[:-1]},{update[1:]}", update_topic(signal.name)
    if signal.trace is not None:
        told = f"{told[:-1]},{details.write(trace=signal.trace)[1:]}"
    tables.append(signal.run_id, Event("SignalReceived", signal.signal_id, told, now))
    use_payloads(tables, signal.run_id, [signal.payload])
    return tables.wake_for(signal.run_id, topic, now)


def refuse_askers(
    tables: Tables, now: int, run_ids: Sequence[UUID], status: EndStatus
) -> list[Notice]:
    """Tell the runs that have asked these, which ended without their code, and have no answer."""
    told = [each for run_id in run_ids for each in _refusals(tables, run_id, status)]
    delivered = pass_signals(tables, now, told)
    for signal, outcome in zip(told, delivered.outcomes, strict=True):
        if outcome == "missing" and forward_signal(tables, signal):
            delivered.notices.append(Notice(FORWARDS_TOPIC, ""))
    return delivered.notices


def _refusals(tables: Tables, run_id: UUID, status: EndStatus) -> Iterator[NewSignal]:
    log = [row.event for row in tables.logs[run_id]]
    ended = {event.key for event in log if event.type in UPDATE_ENDS}
    begun = {event.key for event in log if event.type == UPDATE_ACCEPTED}
    error = ErrorInfo("holdfast.errors.RunEnded", f"run {run_id} has ended ({status})")
    for event in log:
        if event.type != SIGNAL_RECEIVED or not is_update(event.details or ""):
            continue
        asker = _RUN.fullmatch(read_signal(event.details or "").reply_to or "")
        if event.key not in ended and asker is not None:
            said = details.write(
                update_id=event.key,
                error=msgspec.Raw(msgspec.json.encode(error)),
                rejected=event.key not in begun,
            )
            to = newest(tables, UUID(asker[1]))
            yield NewSignal(to, UPDATE_REPLY, said, answer_id(event.key or "", failed=True))
