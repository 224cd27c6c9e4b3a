"""A database that a test has changed is given to another only if it is as new again."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from tests.databases import DatabaseServer, execute

ROWS = """
select (select array_agg(s.*::text) from holdfast.sweeper s),
    (select array_agg(m.*::text order by version) from holdfast.schema_migrations m),
    (select array_agg(f.*::text order by signature) from holdfast.schema_functions f),
    (select count(*) from holdfast.queues), (select sum(last_value) from pg_sequences)
"""
NOW = "create or replace function holdfast.now() returns timestamptz language sql stable as"


def change(server: DatabaseServer, statements: str) -> tuple[bool, bool]:
    """Return whether a changed database is used again, and whether its rows are as before."""
    with server.database() as url:
        rows = read_rows(url)
        name = conninfo_to_dict(url)["dbname"]
        execute(url, statements.format(name=name))
        left = psycopg.connect(url)
        left.execute("select 1")
    with pytest.raises(psycopg.OperationalError):
        left.execute("select 1")
    left.close()
    used_again = name in server.spare
    return used_again, used_again and read_rows(url) == rows


def read_rows(url: str) -> object:
    with psycopg.connect(url) as connection:
        return connection.execute(ROWS.encode()).fetchone()


@pytest.mark.parametrize(
    "statements",
    [
        "create table public.left ()",
        "alter table holdfast.runs add more int",
        "alter function holdfast.now() owner to current_user; drop table holdfast.pauses",
        f"{NOW} 'select clock_timestamp()'",
        "grant select on holdfast.runs to public",
        "select holdfast.create_queue('left'); analyze holdfast.queues",
        "alter database {name} set datestyle to 'German'",
    ],
)
def test_what_cannot_be_undone_is_left_to_no_other(
    database_server: DatabaseServer, statements: str
) -> None:
    assert change(database_server, statements) == (False, False)


@pytest.mark.parametrize(
    "statements",
    [
        "select 1",
        "update holdfast.sweeper set holder = 'ann', held_until = now(), deleted = 7",
        "delete from holdfast.schema_migrations where version = 3",
        "update holdfast.schema_functions set checksum = 'another'",
        "select holdfast.create_queue('left')",
        "select pg_terminate_backend(pid, 10000) from pg_stat_activity "
        "where datname = current_database() and pid <> pg_backend_pid()",
    ],
)
def test_what_can_be_undone_is_undone(database_server: DatabaseServer, statements: str) -> None:
    database_server.drop_spare()  # earlier tests may have left one that is nearly too large
    change(database_server, "select 1")  # so that a session has emptied it before
    assert change(database_server, statements) == (True, True)


def test_processes_copy_one_template(database_url: str, database_server: DatabaseServer) -> None:
    other = DatabaseServer(database_server.url, "other", shared=database_server.shared)
    with other.database() as url:
        assert other.template == database_server.template
        with psycopg.connect(url) as connection:
            assert connection.execute("select count(*) from holdfast.runs").fetchone() == (0,)
    assert len(other.spare) == 1  # it still was as the template
    other.close()
    with database_server.database(fresh=True):
        pass  # the template is there
