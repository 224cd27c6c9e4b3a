"""Message queues: send, receive and acknowledge messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import asyncpg
from msgspec.structs import astuple

from holdfast.database.scripts import check_schema_name
from holdfast.store.port import messages_topic
from holdfast.store.postgres.database import Part, columns, or_none, read_headers, read_notices
from holdfast.store.postgres.rows import json_text, reader
from holdfast.store.postgres.starts import (
    Statement,
    cast_mark,
    flow_runs,
    rules_of,
    work_notices,
    workflow_runs,
)
from holdfast.types import (
    KeptMessage,
    ListedMessage,
    MessageChange,
    MessageDelivery,
    MessageFailure,
    MessagePage,
    MessageReturn,
    NewMessage,
    NewRun,
    Notice,
    QueueInfo,
    QueueMetrics,
    QueueSettings,
    Receipt,
    Receive,
    Received,
    StoredMessage,
    read_place,
    write_place,
)
from holdfast.values.moments import to_micros

# The types of the arguments of `send_messages`.
_TYPES: Final[Sequence[str]] = (
    *("text", "json[]", "double precision[]", "text[]", "text[]", "int[]", "json[]", "bigint[]"),
)

_RECEIPT: Final = ("queue_id", "delivery_id", "place")

_read_settings = reader(QueueSettings)
_read_queue = reader(QueueInfo, "settings")
_read_listed = reader(ListedMessage, "headers", group="group_key")
_read_kept = reader(KeptMessage, "headers", group="group_key")


class PostgresMessages(Part):
    async def create_queue(self, settings: QueueSettings) -> bool:
        changed: bool = await self._database.value("create_queue", *astuple(settings))
        return changed

    async def update_queue(self, settings: QueueSettings) -> bool:
        changed: bool = await self._database.value(
            "update_queue",
            settings.name,
            settings.visibility_seconds,
            settings.max_receives,
            settings.dead_letters,
            settings.dedup_seconds,
            settings.keep_seconds,
            settings.fifo,
            settings.has_priorities,
            settings.has_filters,
        )
        return changed

    async def delete_queue(self, name: str) -> bool:
        return bool(await self._database.value("delete_queue", name))

    async def list_queues(self, name: str | None = None) -> list[QueueInfo]:
        return [
            _read_queue(row, settings=_read_settings(row))
            for row in await self._database.rows("list_queues", name)
        ]

    async def send_messages(
        self, queue: str, messages: Sequence[NewMessage]
    ) -> tuple[list[int], list[Notice]]:
        row = await self._database.row("send_messages", queue, *_columns(messages))
        return row[0], [Notice(messages_topic(queue), queue)]

    async def receive_messages(self, receive: Receive) -> Received:
        if receive.pops:
            rows = await self._database.rows(
                "pop_messages",
                receive.queue,
                receive.limit,
                receive.since,
                receive.contains,
                receive.per_group,
                False,
            )
        else:
            rows = await self._database.rows(
                "receive_messages",
                receive.queue,
                receive.limit,
                receive.visibility_seconds,
                receive.consumer,
                receive.since,
                receive.contains,
                receive.per_group,
                receive.acks or None,
                False,
            )
        last = rows[-1]
        return Received(
            now=last["now"],
            next_due_at=last["next_due_at"],
            newest=last["newest"],
            acked=last["acked"] or (),
            deliveries=[_delivery(row) for row in rows if row["message_ids"]],
            notices=_notices([receive.queue] if last["freed"] else ()),
        )

    async def ack_messages(self, receipts: Sequence[Receipt]) -> tuple[list[bool], list[Notice]]:
        row = await self._database.row("ack_messages", *columns(receipts, *_RECEIPT))
        return row["acked"], _notices(row["freed"])

    async def ack_and_start(
        self, receipts: Sequence[Receipt], runs: Sequence[NewRun]
    ) -> tuple[bool, list[Notice]]:
        flows = [run for run in runs if run.kind == "flow"]
        runs = [run for run in runs if run.kind != "flow"]
        row = await self._database.row(
            "ack_and_start",
            receipts[0].queue_id,
            receipts[0].delivery_id,
            [receipt.place for receipt in receipts],
            *workflow_runs(runs),
            rules_of(runs),
            *(flow_runs(flows) if flows else ()),
        )
        if not row["acked"]:
            return False, []
        started = [run for run, created in zip(runs, row["created"], strict=True) if created]
        work = await work_notices(self._database, started)
        return True, [*_notices(row["freed"]), *work, *read_notices(row["notices"])]

    async def return_messages(
        self, returns: Sequence[MessageReturn]
    ) -> tuple[list[bool], list[Notice]]:
        row = await self._database.row(
            "return_messages",
            *columns(returns, *(f"receipt.{name}" for name in _RECEIPT)),
            *columns(returns, "delay_seconds", "error", "counted"),
            or_none([each.discarded or None for each in returns]),
        )
        return row["returned"], _notices(row["freed"])

    async def extend_deliveries(self, receipts: Sequence[Receipt], *, seconds: float) -> list[bool]:
        kept: list[bool] = await self._database.value(
            "extend_deliveries", *columns(receipts, *_RECEIPT[:2]), seconds
        )
        return kept

    async def return_expired(self, *, limit: int = 100) -> tuple[int, int | None]:
        row = await self._database.row("return_expired", limit)
        return row["returned"], row["next_due_at"]

    async def purge_messages(self, queue: str, *, limit: int = 10_000) -> int:
        return int(await self._database.value("purge_messages", queue, limit))

    async def redrive_messages(
        self,
        queue: str,
        *,
        limit: int = 1000,
        message_ids: Sequence[int] | None = None,
        before: int | None = None,
    ) -> tuple[int, list[Notice]]:
        row = await self._database.row("redrive_messages", queue, limit, message_ids, before)
        return row[0], _notices([queue] if row[0] else ())

    async def queue_metrics(
        self, queue: str | None = None, *, limit: int = 10_000
    ) -> list[QueueMetrics]:
        return [
            QueueMetrics.counted(*row, limit=limit)
            for row in await self._database.rows("queue_metrics", queue, limit)
        ]

    async def list_messages(
        self, queue: str, *, limit: int = 100, clip: int | None = None
    ) -> list[ListedMessage]:
        if clip is None:
            rows = await self._database.rows("list_messages", queue, limit)
        else:
            rows = await self._database.rows("clipped_messages", queue, limit, clip)
        return [_listed(row) for row in rows]

    async def message_page(
        self,
        queue: str,
        *,
        limit: int,
        cursor: str | None = None,
        clip: int | None = None,
        origin: str | None = None,
    ) -> MessagePage:
        after = None if cursor is None else read_place(cursor)
        rows = await self._database.rows("message_page", queue, limit, after, clip, origin)
        shown = [_listed(row) for row in rows if origin is None or row["origin"] == origin]
        more = 0 < limit == len(rows)
        return MessagePage(shown, write_place(rows[-1]["place"]) if more else None)

    async def get_message(self, queue: str, message_id: int) -> ListedMessage | None:
        rows = await self._database.rows("get_message", queue, message_id)
        return _listed(rows[0]) if rows else None

    async def message_failures(
        self, message_ids: Sequence[int]
    ) -> dict[int, tuple[MessageFailure, ...]]:
        found: dict[int, tuple[MessageFailure, ...]] = {}
        for row in await self._database.rows("message_failures", message_ids):
            failure = MessageFailure(row["failed_at"], row["error"])
            found[row["message_id"]] = (*found.get(row["message_id"], ()), failure)
        return found

    async def cancel_message(self, queue: str, message_id: int) -> tuple[bool, list[Notice]]:
        row = await self._database.row("cancel_message", queue, message_id)
        return row[0], _notices([queue] if row[0] else ())

    async def change_message(
        self, queue: str, message_id: int, change: MessageChange
    ) -> tuple[bool, list[Notice]]:
        row = await self._database.row("change_message", queue, message_id, *astuple(change))
        return row[0], _notices([queue] if row[0] else ())

    async def list_kept(self, queue: str, *, limit: int = 100) -> list[KeptMessage]:
        return [
            _read_kept(row, headers=read_headers(row["headers"]))
            for row in await self._database.rows("list_kept", queue, limit)
        ]

    async def sweep_queues(self, *, limit: int = 1000) -> int:
        return int(await self._database.value("sweep_queues", limit))


def _columns(messages: Sequence[NewMessage]) -> tuple[object, ...]:
    """Return the arguments of `send_messages` after the queue; None for an array of nulls."""
    return (
        [message.payload for message in messages],
        or_none([message.delay_seconds for message in messages]),
        or_none([message.group for message in messages]),
        or_none([message.dedup_id for message in messages]),
        or_none([message.priority for message in messages]),
        or_none([json_text(each.headers) if each.headers else None for each in messages]),
        or_none([message.due_at for message in messages]),
    )


def send_statement(
    queue: str, messages: Sequence[NewMessage], *, schema: str, placeholder: Callable[[int], str]
) -> Statement:
    """Return the call that sends messages inside the caller's own transaction, for any driver.

    It has one row with the message's id for each message, in the order given.
    """
    check_schema_name(schema)
    casts = (cast_mark(placeholder(n), type_) for n, type_ in enumerate(_TYPES, 1))
    call = f'"{schema}".send_messages({", ".join(casts)})'
    return Statement(f"select unnest({call})", (queue, *_columns(messages)))


def ack_statement(
    receipts: Sequence[Receipt], *, schema: str, placeholder: Callable[[int], str]
) -> Statement:
    """Return the call that acknowledges messages inside the caller's own transaction.

    It has one row for each receipt, in the order given: whether it was in flight still.
    """
    check_schema_name(schema)
    types = ("int[]", "uuid[]", "int[]")
    casts = (cast_mark(placeholder(n), type_) for n, type_ in enumerate(types, 1))
    text = f'select unnest(acked) from "{schema}".ack_messages({", ".join(casts)})'
    return Statement(text, (*columns(receipts, *_RECEIPT),))


def _notices(queues: Iterable[str] | None) -> list[Notice]:
    return [Notice(messages_topic(queue), queue) for queue in queues or ()]


def _delivery(row: asyncpg.Record) -> MessageDelivery:
    ids = row["message_ids"]
    nothing = [None] * len(ids)
    messages = [
        StoredMessage(message_id, payload, attempts, to_micros(sent_at), read_headers(head), error)
        for message_id, payload, attempts, sent_at, head, error in zip(
            ids,
            row["payloads"],
            row["attempts"],
            row["sent_ats"],
            row["headers"] or nothing,
            row["errors"] or nothing,
            strict=True,
        )
    ]
    return MessageDelivery(row["queue_id"], row["delivery_id"], row["group_key"], messages)


def _listed(row: asyncpg.Record) -> ListedMessage:
    return _read_listed(row, headers=read_headers(row["headers"]))
