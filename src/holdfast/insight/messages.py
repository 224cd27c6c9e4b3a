"""Why messages of a queue are where they are, and what would move them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final, Literal, TypeAlias

from holdfast.errors import InvalidInput
from holdfast.insight.limits import full_text, limits_of_messages
from holdfast.insight.wording import ago, count_of, length, several
from holdfast.store.port import Store
from holdfast.types import LimitInfo, LimitRule, ListedMessage, QueueInfo, QueueMetrics, Value
from holdfast.values.key_paths import key_of

MOST: Final = 1_000  # messages that are looked at
_MOST_READ: Final = 10_000  # with their payloads, for limits with a key

MessageState: TypeAlias = Literal[
    "paused", "in_flight", "delayed", "waiting", "limited", "due", "dead"
]
QueueState: TypeAlias = Literal["paused", "empty", "in_flight", "delayed", "limited", "due"]


class MessageExplanation(Value, frozen=True):
    """Why a message is not gone. `because` is a sentence about it, details are lines."""

    queue: str
    message_id: int
    state: MessageState
    because: str
    details: tuple[str, ...] = ()


class QueueExplanation(Value, frozen=True):
    """Why a queue has messages, or none. `because` is a sentence about it, details are lines."""

    queue: str
    state: QueueState
    because: str
    details: tuple[str, ...] = ()


async def explain_queue(store: Store, name: str) -> QueueExplanation:
    """Say why messages wait in a queue. Raises UnknownQueue."""
    [counted] = await store.queue_metrics(name, limit=MOST)
    [info] = await store.list_queues(name)
    limits = limits_of_messages(await store.list_limits(), name)
    full = [each for each in limits if each.full_keys]
    now = await store.now()
    details: list[str] = []
    if counted.in_flight:
        details.append(
            f"{count_of(counted, 'in_flight', 'message')} in flight: received, not ended"
        )
    if counted.delayed:
        details.append(f"{count_of(counted, 'delayed', 'message')} delayed, or tried again later")
    if counted.dead:
        dead = count_of(counted, "dead", "dead letter")
        details.append(
            f"{dead} in {info.settings.dead_letters!r}: see `holdfast queue dead {name}`; "
            f"`holdfast queue redrive {name}` moves them back"
        )
    state, because = _queue_reason(info, counted, full, now)
    if state == "paused":
        details.append(f"`holdfast queues resume {name}` ends the pause")
    elif state == "limited":
        details.append(
            "`holdfast limits set` changes a limit, and `holdfast limits list` shows all"
        )
    return QueueExplanation(name, state, because, tuple(details))


def _queue_reason(
    info: QueueInfo, counted: QueueMetrics, full: Sequence[LimitInfo], now: int
) -> tuple[QueueState, str]:
    since = counted.oldest_due_at
    due = f"{count_of(counted, 'due', 'message')} due"
    if since is not None:
        due += f", the oldest for {length(now - since)}"
    if info.is_paused:
        return "paused", f"it is paused, and receives find nothing; {due}"
    if counted.due and any(each.waiting for each in full):
        return "limited", f"{due}: {'; '.join(map(full_text, full))}"
    if counted.due:
        if info.settings.fifo and counted.in_flight:
            return "due", f"{due}: no receive has taken them yet, or their groups are in flight"
        return "due", f"{due}: no receive has taken them yet"
    if counted.in_flight:
        return "in_flight", "all that is due was received, and has not ended yet"
    if counted.delayed:
        return "delayed", "nothing in it is due yet"
    return "empty", "nothing is in it"


async def explain_message(store: Store, name: str, message_id: int) -> MessageExplanation:
    """Say why a message is not gone: whom or what it waits for.

    Raises UnknownQueue, and InvalidInput if the message is not among the first 1,000 of the queue.
    """
    found = await store.list_messages(name, limit=MOST, clip=0)
    [info] = await store.list_queues(name)
    limits = limits_of_messages(await store.list_limits(), name)
    now = await store.now()
    message = next((each for each in found if each.message_id == message_id), None)
    if message is None:
        more = f" among the first {MOST:,}" if len(found) == MOST else ""
        raise InvalidInput(
            f"queue {name} has no message {message_id}{more}: it was acknowledged, or is a dead "
            f"letter (see `holdfast queue dead {name}`), or never was in this queue"
        )
    state, because = _message_reason(message, found, info, now)
    details: list[str] = []
    if state == "due" and (full := await _full_for(store, name, message, limits, now)):
        state, because = "limited", f"it is due: {'; '.join(map(full_text, full))}"
    elif state == "due":
        keyed = [each for each in limits if _is_keyed_rate(each) and each.waiting]
        details += [f"if its key is full, it waits for that: {full_text(each)}" for each in keyed]
    if message.attempts and not message.in_flight:
        details.append(f"received before: {message.attempts}; limit: {_most(info)}")
    if message.error:
        details.append(f"last error: {message.error}")
    if state == "dead":
        details.append(f"received before it moved here: {message.receives}")
        details.append(f"`holdfast queue redrive {message.origin}` moves it back")
    if state == "paused":
        details.append(f"`holdfast queues resume {name}` ends the pause")
    return MessageExplanation(name, message_id, state, because, tuple(details))


def _most(info: QueueInfo) -> str:
    most = info.settings.max_receives
    return "none" if most is None else f"{most}, then it is a dead letter"


def _message_reason(
    message: ListedMessage, found: Sequence[ListedMessage], info: QueueInfo, now: int
) -> tuple[MessageState, str]:
    """Return what comes first of all that holds a message up."""
    if message.in_flight:
        text = f"it is in flight, received for the {_ordinal(message.attempts)} time; "
        if message.visible_at <= now:
            return "in_flight", f"{text}its time is over, and others may receive it now"
        return "in_flight", (
            f"{text}if nobody ends or extends it, others may receive it "
            f"{ago(message.visible_at, now)}"
        )
    if message.origin is not None:
        return "dead", f"it is a dead letter of queue {message.origin!r}"
    if info.is_paused:
        return "paused", f"queue {info.settings.name!r} is paused, and receives find nothing"
    if (first := _first_of_group(message, found)) is not None:
        where = "is in flight" if first.in_flight else "comes first"
        if not first.in_flight and first.visible_at > now:
            where += f", and is due {ago(first.visible_at, now)}"
        return "waiting", f"message {first.message_id} of its group {message.group!r} {where}"
    if message.visible_at > now:
        why = "it failed, and is tried again" if message.error else "it is due"
        return "delayed", f"{why} {ago(message.visible_at, now)}"
    before = found.index(message)
    ahead = f"; {several(before, 'message')} before it" if before else ""
    return (
        "due",
        f"it is due for {length(now - message.visible_at)}: no receive has taken it{ahead}",
    )


async def _full_for(
    store: Store, queue: str, message: ListedMessage, limits: Sequence[LimitInfo], now: int
) -> list[LimitInfo]:
    """Return the limits that allow no more messages like this one.

    Of a rate with a key it is not known here which values allow no more, but how many wait.
    """
    full = [each for each in limits if each.full_keys]
    if not any(each.rule.key for each in full):
        return full
    found = await store.list_messages(queue, limit=_MOST_READ)
    payload = next((e.payload for e in found if e.message_id == message.message_id), "null")
    flying = [each.payload for each in found if each.in_flight]
    due = sum(not each.in_flight and each.visible_at <= now for each in found)

    def is_full(rule: LimitRule) -> bool:
        own = key_of(payload, rule.key)
        return sum(key_of(each, rule.key) == own for each in flying) >= (rule.most or 0)

    return [
        each
        for each in full
        if not each.rule.key
        or (each.waiting >= due if _is_keyed_rate(each) else is_full(each.rule))
    ]


def _is_keyed_rate(info: LimitInfo) -> bool:
    return info.rule.kind == "rate" and bool(info.rule.key)


def _first_of_group(message: ListedMessage, found: Sequence[ListedMessage]) -> ListedMessage | None:
    """Return the message of the same group that holds this one up: in flight, else an older one."""
    if message.group is None:
        return None
    group = [each for each in found if each.group == message.group]
    older = [each for each in group if each.message_id < message.message_id]
    return next(
        (each for each in group if each.in_flight),
        min(older, key=attrgetter("message_id"), default=None),
    )


def _ordinal(count: int) -> str:
    ending = "th" if 10 <= count % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(count % 10, "th")
    return f"{count}{ending}"
