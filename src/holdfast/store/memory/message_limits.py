"""Which messages a receive takes: what is due, as far as the limits of its queue allow.

They are limits of how many messages are in flight at once, or handed out in a period: the limits
of the queue of that name. Its tasks count for themselves: what rates have let begin of messages is
beside that of tasks, under keys that no task has.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.codec import contains
from holdfast.store.memory.choosing import add_uses, rate_left, used_of
from holdfast.store.memory.queue_rows import MessageRow, QueueRow
from holdfast.store.memory.rows import LimitRow
from holdfast.store.memory.tables import Tables
from holdfast.store.port.limits import concerns_messages
from holdfast.types import Receive
from holdfast.values.key_paths import key_of

_MOST_COUNTED = 1_000  # of what is due
_MESSAGES = "\0"  # before the keys of messages among the uses of a rate: no value has it


class MessageLimits:
    """What the limits of a queue allow of its messages now."""

    def __init__(self, tables: Tables, queue: QueueRow, now: int) -> None:
        rows = [
            row
            for row in tables.limits.values()
            if concerns_messages(row.rule, queue.settings.name) and not row.removed
        ]
        self._queue, self._now = queue, now
        self._rows = rows
        self._keyed = [row for row in rows if row.rule.key]
        self.next_at: int | None = None
        self.holds = any(row.rule.kind == "concurrency" for row in rows)
        plain = [self._free(row, "") for row in rows if not row.rule.key]
        self.room = min(plain, default=None)

    @property
    def are_set(self) -> bool:
        return bool(self._rows)

    @property
    def keyed(self) -> bool:
        return bool(self._keyed)

    def at_most(self, limit: int) -> int:
        """Return how many messages limits without a key allow, `limit` at most."""
        return limit if self.room is None else min(limit, self.room)

    def within(self, messages: Sequence[MessageRow]) -> list[MessageRow]:
        """Return the messages that limits with a key allow together, in their order.

        As on PostgreSQL, a message counts for each of its limits although another refuses it.
        """
        left: dict[tuple[int, str], int] = {}
        slots = [[(row, _slot(row, each)) for row in self._keyed] for each in messages]
        for row, slot in (pair for some in slots for pair in some):
            if (row.limit_id, slot) not in left:
                left[row.limit_id, slot] = self._free(row, slot)
        is_open = [all(left[row.limit_id, slot] > 0 for row, slot in some) for some in slots]
        found: list[MessageRow] = []
        for message, some, can in zip(messages, slots, is_open, strict=True):
            if can and all(left[row.limit_id, slot] > 0 for row, slot in some):
                found.append(message)
            for row, slot in some if can else ():
                left[row.limit_id, slot] -= 1
        return found

    def count(self, messages: Iterable[MessageRow]) -> None:
        """Count messages that are handed out for the rates."""
        taken = list(messages)
        for row in self._rows:
            if row.rule.kind == "rate":
                for slot, count in Counter(_slot(row, each) for each in taken).items():
                    add_uses(row, _MESSAGES + slot, self._now, count)

    def _free(self, row: LimitRow, slot: str) -> int:
        if row.rule.kind == "concurrency":
            return max(0, (row.rule.most or 0) - _held(self._queue, row)[slot])
        free, next_at = rate_left(row, _MESSAGES + slot, self._now)
        if next_at is not None:
            self.next_at = next_at if self.next_at is None else min(self.next_at, next_at)
        return free


def message_use(tables: Tables, row: LimitRow, now: int) -> tuple[int, int, int]:
    """Return how many messages count for a limit, its full keys, and how many due ones wait."""
    queue = tables.queues.rows.get(row.rule.name)
    if queue is None or not concerns_messages(row.rule, row.rule.name):
        return 0, 0, 0
    counts: dict[str, int] = {}
    if row.rule.kind == "concurrency":
        counts |= _held(queue, row)
        full = {slot for slot, count in counts.items() if count >= (row.rule.most or 0)}
    else:
        slots = [key[1:] for key in [*row.uses] if key.startswith(_MESSAGES)]
        counts |= {slot: used_of(row, _MESSAGES + slot, now) for slot in slots}
        full = {slot for slot in slots if rate_left(row, _MESSAGES + slot, now)[0] <= 0}
    waiting = [each for each in queue.in_order() if each.visible_at <= now][:_MOST_COUNTED]
    return (
        sum(counts.values()) if row.rule.kind == "concurrency" else 0,
        len(full),
        sum(_slot(row, each) in full for each in waiting),
    )


def _held(queue: QueueRow, row: LimitRow) -> defaultdict[str, int]:
    held = defaultdict[str, int](int)
    for delivery in queue.deliveries.values():
        for message in delivery.messages.values():
            held[_slot(row, message)] += 1
    return held


def _slot(row: LimitRow, message: MessageRow) -> str:
    return key_of(message.new.payload, row.rule.key or None)


def take_plain(
    row: QueueRow, receive: Receive, now: int, limits: MessageLimits
) -> list[tuple[str | None, list[MessageRow]]]:
    """Take what is due of a plain queue, as one delivery at most."""
    pattern = None if receive.contains is None else msgspec.json.decode(receive.contains)
    due = [
        message
        for message in row.in_order()
        if message.visible_at <= now
        and (
            receive.contains is None or contains(msgspec.json.decode(message.new.payload), pattern)
        )
    ]
    due = (limits.within(due) if limits.keyed else due)[: limits.at_most(receive.limit)]
    return [(None, due)] if due else []


def take_groups(
    row: QueueRow, receive: Receive, now: int, limits: MessageLimits
) -> list[tuple[str | None, list[MessageRow]]]:
    """Take what is due of groups that have nothing in flight, each as a delivery."""
    per_group = 1 if limits.keyed else limits.at_most(receive.per_group)
    most = limits.at_most(receive.limit * per_group) // per_group
    most = min(receive.limit, max(1, most))
    busy = {delivery.group for delivery in row.deliveries.values()}
    taken: list[tuple[str | None, list[MessageRow]]] = []
    groups = row.groups()
    for group in sorted(
        groups, key=lambda each: (row.looked_at.get(each, groups[each][0].visible_at), each)
    ):
        due = groups[group][:per_group]
        until = next((n for n, each in enumerate(due) if each.visible_at > now), len(due))
        if until and group not in busy:
            taken.append((group, due[:until]))
    if limits.keyed:
        allowed = limits.within([each[0] for _, each in taken])
        taken = [(group, each) for group, each in taken if each[0] in allowed]
    for each, _ in taken[:most]:
        row.looked_at[each or ""] = now
    return taken[:most]
