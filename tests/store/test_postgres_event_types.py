"""What the engine says of event types, in SQL and in Python: one list, written twice."""

from __future__ import annotations

import re
from pathlib import Path

import asyncpg

from holdfast.events import CAN_WAIT, DELIVERED, read_seen
from holdfast.types import Event

PAGE = Path(__file__).parents[2] / "docs/reference/events.md"
TYPES = set(re.findall(r"^\| ([A-Z]\w+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
MARKS = (
    '{"seen":7,"name":"a"}',
    '{"python":"3.12","seen":7,"name":"a"}',
    '{"python":"3.12","name":"a"}',
    '{"name":"a","seen":7}',
    '{"result":{"seen":7,"a":1}}',
)


async def test_sql_and_python_agree_on_what_can_wait(database_url: str) -> None:
    assert TYPES >= CAN_WAIT | DELIVERED
    connection = await asyncpg.connect(database_url)
    try:
        found = await connection.fetch(
            "select t from unnest($1::text[]) as t where holdfast._can_wait(t)", sorted(TYPES)
        )
    finally:
        await connection.close()
    assert {row["t"] for row in found} == CAN_WAIT


async def test_sql_and_python_read_the_same_marks(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        for kind in sorted(TYPES):
            for text in MARKS:
                seen = await connection.fetchval("select holdfast._seen($1, $2)", kind, text)
                assert seen == read_seen(Event(kind, "a", text, 0)), (kind, text)
    finally:
        await connection.close()
