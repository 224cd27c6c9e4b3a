"""Which messages a receive takes: what is due, as far as limits allow."""

from __future__ import annotations

import msgspec

from holdfast.codec import contains
from holdfast.store.memory.message_limits import MessageLimits
from holdfast.store.memory.queue_rows import MessageRow, QueueRow
from holdfast.types import Receive


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
