"""Send messages to runs: signals, and updates, which are answered."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Iterable
from uuid import UUID, uuid4

import msgspec

from holdfast.client.chains import find_successor
from holdfast.client.naming import RunRef
from holdfast.client.reading import get_record
from holdfast.client.run import decode_plain
from holdfast.client.session import Session
from holdfast.codec import decoder, encode
from holdfast.errors import ResultTimeout, RunEnded, RunNotFound
from holdfast.insight.retries import find_retry
from holdfast.store.shared_calls import MAX_BATCH
from holdfast.types import Delivery, NewSignal, Value
from holdfast.values.durations import Duration, seconds
from holdfast.values.names import check_signal_name
from holdfast.values.texts import check_id, several


class Signal(Value, frozen=True):
    """A signal to send with others; see `Client.signal_many`."""

    run: RunRef
    name: str
    payload: object = None
    signal_id: str | None = None


def encode_signal(signal: Signal, run_id: UUID) -> NewSignal:
    """Check and encode a signal for a run. Raises InvalidName, InvalidInput and PayloadError."""
    if signal.signal_id is not None:
        check_id("signal id", signal.signal_id)
    name, payload = check_signal_name(signal.name), encode(signal.payload)
    return NewSignal(run_id, name, payload, signal.signal_id)


async def send_signal(session: Session, signal: Signal, run_id: UUID | None = None) -> bool:
    """Send a signal, for a key to the run `run_id` that it is known to name.

    Return False if it was sent before. Raises what `Client.signal` says.
    """
    new = encode_signal(signal, run_id or await session.id_of(signal.run))
    outcome, run_id = await _submit(session, new, by_key=isinstance(signal.run, tuple))
    if outcome == "missing":
        raise RunNotFound(run_id)
    if outcome == "ended":
        raise RunEnded(run_id, (await get_record(session, run_id)).status)
    return outcome == "delivered"


async def send_signals(session: Session, signals: Iterable[Signal]) -> list[Delivery]:
    """Send signals in chunks, in the order given. Return the outcome of each."""
    given = several("signals (each a Signal)", signals, Signal)
    run_ids = await session.names.runs(signal.run for signal in given)
    new = [encode_signal(signal, run_id) for signal, run_id in zip(given, run_ids, strict=True)]
    outcomes: list[Delivery] = []
    for at in range(0, len(new), MAX_BATCH):
        chunk = new[at : at + MAX_BATCH]
        with session.traced_signals(chunk) as traced:
            pairs = list(zip(traced, await session.signals.send(traced), strict=True))
        ended = {each.run_id for each, outcome in pairs if outcome == "ended"}
        newest = await session.store.newest_runs(list(ended)) if ended else {}
        for (each, outcome), signal in zip(pairs, given[at : at + MAX_BATCH], strict=True):
            by_key = isinstance(signal.run, tuple)
            if by_key or newest.get(each.run_id, each.run_id) != each.run_id:
                outcome, _ = await _pass_on(session, outcome, each, by_key=by_key)
            outcomes.append(outcome)
    return outcomes


async def send_update(
    session: Session, update: Signal, timeout: Duration | None, type: builtins.type[object] | None
) -> object:
    """Send an update and return its answer. Raises what `Client.update` says."""
    limit = None if timeout is None else seconds(timeout)
    update_id = str(uuid4()) if update.signal_id is None else update.signal_id
    check_id("update id", update_id)
    decode = decode_plain if type is None else decoder(type)  # a bad type sends nothing
    update = msgspec.structs.replace(update, signal_id=update_id)
    new = encode_signal(update, await session.id_of(update.run))
    return decode(await _ask(session, new, update_id, limit, by_key=isinstance(update.run, tuple)))


async def _ask(
    session: Session, new: NewSignal, update_id: str, timeout: float | None, *, by_key: bool
) -> str:
    """Send an update, and return its answer as JSON text.

    The time limit is one of the wait for the answer: a caller that is told that there is none yet
    may rely on it that the update was sent, and that its run was open.
    """
    replies = session.replies
    await replies.listen()
    new = msgspec.structs.replace(new, update=True, reply_to=replies.topic)
    with replies.expect(update_id) as woken:
        outcome, run_id = await _submit(session, new, by_key=by_key)
        limit, delivered = asyncio.timeout(timeout), outcome == "delivered"
        try:
            return await replies.find(run_id, update_id, woken, limit, delivered=delivered)
        except TimeoutError:
            if timeout is None or not limit.expired():
                raise
            awaited = f"answered update {new.name} ({update_id})"
            raise ResultTimeout(new.run_id, timeout, awaited) from None


async def _submit(session: Session, new: NewSignal, *, by_key: bool) -> tuple[Delivery, UUID]:
    """Send a signal, in one transaction with the others that are sent at the same moment.

    For a run that continued as new it goes to the newest, for a key also to the retry of its run.
    Return the outcome and the run that it went to.
    """
    with session.traced_signals([new]) as (new,):
        return await _pass_on(session, await session.signals.submit(new), new, by_key=by_key)


async def _pass_on(
    session: Session, outcome: Delivery, new: NewSignal, *, by_key: bool = False
) -> tuple[Delivery, UUID]:
    """If the signal's run has ended, send it to the runs that it continued as."""
    while outcome == "ended":
        next_only = new.signal_id is not None
        next_id = await find_successor(session.store, new.run_id, next_only=next_only)
        if next_id is None and by_key:
            retry = await find_retry(session.store, new.run_id)
            next_id = None if retry is None else retry.run_id
        if next_id is None:
            break
        new = msgspec.structs.replace(new, run_id=next_id)
        outcome = await session.signals.submit(new)
    return outcome, new.run_id
