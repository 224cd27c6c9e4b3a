"""Processes with large payloads are killed: no reference without its object, no orphan for ever."""

from __future__ import annotations

from uuid import UUID

import psycopg
import pytest

from holdfast.client import Client
from holdfast.codec import find_references
from holdfast.objects import open_objects
from holdfast.store.postgres import PostgresStore
from tests.crash import payload_worker
from tests.crash.payload_worker import SIZE, make_app
from tests.crash.processes import points_of
from tests.objects import environment

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

LATER = """
    update holdfast.payload_owners
    set noted_at = noted_at - interval '2 days', due_at = due_at - interval '2 days',
        removed_until = removed_until - interval '2 days'
"""


def run_until(url: str, place: str, s3: str, run: UUID | None, kill_at: int) -> int:
    """Work in a process of its own; return how many points it passed, 0 if it died."""
    return points_of(payload_worker.work, url, place, run, kill_at, env=environment(s3))


def change(url: str, statement: str) -> None:
    """Change the database."""
    with psycopg.connect(url) as connection:
        connection.execute(statement.encode())


def rows(url: str, query: str) -> list[str]:
    """Return the rows of a query as texts."""
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute(query.encode()).fetchall()]


async def objects_in(place: str) -> set[str]:
    """Return the names of all objects."""
    return {name async for name in open_objects(place).names("payloads/")}


async def test_kills_leave_no_hole_and_no_orphan(
    database_url: str, s3_server: str, s3_bucket: str
) -> None:
    """After the owner is noted, between put and commit, after the commit; then while deleting."""
    place, store = f"{s3_bucket}/large", PostgresStore(database_url)
    await store.open()
    async with Client(database_url, app=make_app(place)) as client:
        run = await client.start("join", "xy")
        for kill_at in (2, 4, 6, 0):
            passed = run_until(database_url, place, s3_server, run.run_id, kill_at)
            assert bool(passed) == (kill_at == 0), kill_at
            there = await objects_in(place)
            for text in rows(database_url, "select details::text from holdfast.events"):
                assert {each.name for each in find_references(text or "")} <= there
            await store.reap_workers(
                worker_ids=[each.worker_id for each in await store.list_workers()]
            )
        assert await run.result() == SIZE * "x" + SIZE * "y"
        lost = await client.start("join", 2 * SIZE * "z")
    assert len(await objects_in(place)) == 4
    change(database_url, "update holdfast.runs set delete_after = now() where status <> 'running'")
    # The commit that refers to this object is as if it had never come.
    change(database_url, f"delete from holdfast.tasks where run_id = '{lost.run_id}'")
    change(database_url, f"delete from holdfast.runs where run_id = '{lost.run_id}'")
    for kill_at in (2, 5, 0):
        change(database_url, LATER)
        passed = run_until(database_url, place, s3_server, None, kill_at)
        assert bool(passed) == (kill_at == 0), kill_at
    assert await objects_in(place) == set()
    assert rows(database_url, "select owner::text from holdfast.payload_owners") == []
    await store.close()
