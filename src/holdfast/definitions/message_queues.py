"""What a message queue is to be, as a client or the code of an app says it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from holdfast.definitions.options import option, option_seconds
from holdfast.types import QueueSettings
from holdfast.values.durations import Duration
from holdfast.values.names import check_queue_name
from holdfast.values.numbers import true_or_false, whole_number


def settings_of(
    name: str,
    kind: tuple[bool, bool, bool],
    visibility: Duration,
    max_receives: int | None,
    dead_letters: str | None,
    deduplication: Duration,
    keep: Duration | None,
) -> QueueSettings:
    """Return what a new queue is to be; its kind is fifo, priorities, filters.

    Raises InvalidName and ConfigurationError.
    """
    of = f"message queue {check_queue_name(name)}"
    for each, value in zip(("fifo", "priorities", "filters"), kind, strict=True):
        true_or_false(value, f"{of}: {each}")
    fifo, priorities, filters = kind
    if max_receives is not None:
        max_receives = whole_number(max_receives, of, "max_receives", 1)
    if dead_letters is not None:
        with option(of, "dead_letters"):
            check_queue_name(dead_letters)
    return QueueSettings(
        name=name,
        fifo=fifo,
        has_priorities=priorities,
        has_filters=filters,
        visibility_seconds=option_seconds(visibility, of, "visibility"),
        max_receives=max_receives,
        dead_letters=dead_letters,
        dedup_seconds=option_seconds(deduplication, of, "deduplication"),
        keep_seconds=None if keep is None else option_seconds(keep, of, "keep"),
    )


def dead_letters_first(queues: Mapping[str, QueueSettings]) -> Collection[QueueSettings]:
    """Return queues, each after the queue of its dead letters.

    A queue that is created makes that one with default settings, if there is none.
    """
    ordered = dict[str, QueueSettings]()
    for queue in queues.values():
        chain, each = dict[str, QueueSettings](), queues.get(queue.name)
        while each is not None and each.name not in ordered and each.name not in chain:
            chain[each.name] = each
            each = queues.get(each.dead_letters or f"{each.name}.dead")
        ordered.update(reversed(chain.items()))
    return ordered.values()
