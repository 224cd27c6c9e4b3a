"""A person at psql who defines flows and works on them."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

import psycopg

WORKER = uuid4()


class Hand:
    """A person at psql."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def rows(self, query: str, *values: object) -> list[dict[str, Any]]:
        cursor = self.connection.execute(query.encode(), values)
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def value(self, query: str, *values: object) -> Any:
        (row,) = self.rows(query, *values)
        (value,) = row.values()
        return value

    def begin(self) -> None:
        """Begin a transaction; `commit` ends it."""
        self.connection.execute("begin")

    def commit(self) -> None:
        self.connection.execute("commit")

    def define(self, slug: str, *steps: tuple[str, list[str]], **options: object) -> None:
        self.rows("select * from holdfast.create_flow(%s)", slug)
        for step, deps in steps:
            self.add(slug, step, deps)

    def add(self, flow: str, step: str, deps: list[str], **options: object) -> None:
        named = "".join(f", {name} => %s" for name in options)
        self.rows(
            f"select * from holdfast.add_step(%s, %s, %s{named})",
            flow,
            step,
            deps,
            *options.values(),
        )

    def start(self, slug: str, value: object) -> UUID:
        row = self.value(
            "select run_id from holdfast.start_flow(%s, %s::jsonb)", slug, json.dumps(value)
        )
        assert isinstance(row, UUID)
        return row

    def work(self, slug: str, limit: int = 100) -> list[dict[str, Any]]:
        return self.rows(
            "select * from holdfast.start_tasks(%s, array(select msg_id from "
            "holdfast.read_with_poll(%s, 60, %s, 0)), %s) order by run_id, step_slug, task_index",
            slug,
            slug,
            limit,
            WORKER,
        )

    def complete(self, run_id: UUID, step: str, output: object, index: int = 0) -> str:
        return str(
            self.value(
                "select holdfast.complete_task(%s, %s, %s, %s::jsonb)",
                run_id,
                step,
                index,
                json.dumps(output),
            )
        )

    def fail(self, run_id: UUID, step: str, message: str = "no", index: int = 0) -> str:
        return str(
            self.value("select holdfast.fail_task(%s, %s, %s, %s)", run_id, step, index, message)
        )

    def run(self, run_id: UUID) -> dict[str, Any]:
        (row,) = self.rows("select * from holdfast.runs where run_id = %s", run_id)
        return row

    def statuses(self, run_id: UUID) -> dict[str, str]:
        return {
            row["step_slug"]: row["status"]
            for row in self.rows("select * from holdfast.flow_steps(array[%s::uuid])", run_id)
        }

    def log(self, run_id: UUID) -> list[str]:
        return [
            f"{row['event_type']} {row['key'] or ''}".strip()
            for row in self.rows(
                "select event_type, key from holdfast.events where run_id = %s order by idx", run_id
            )
        ]
