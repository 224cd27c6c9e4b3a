"""Databases for tests: copied from a template, and used again after tests that left them whole."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg.rows import TupleRow

from holdfast.database.migrate import render
from holdfast.database.scripts import DEFAULT_SCHEMA
from tests import sessions

# Of all servers of this process: one may be asked for again while a database of it is in use.
_numbers = itertools.count()
MOST_BYTES = 1 << 20  # of the tables of a database that is used again: dead rows slow searches

# What a test may have left: sessions, and transactions that are prepared.
END_SESSIONS = """
select coalesce(bool_and(pg_terminate_backend(pid, 10000)), true) and not exists (
    select from pg_prepared_xacts where database = current_database())
from pg_stat_activity
where datname = current_database() and pid <> all(%s::int[] || pg_backend_pid())
"""

# All that a test may change of a database but the rows: objects, rights, settings, statistics. A
# row of a catalog has a later xmin after each change, and the same one in each copy: its distance
# from that of the schema.
STATE = """
with schema as materialized (
    select age(xmin) as age from pg_namespace where nspname = '{schema}'
)
select md5(string_agg(part, '|' order by part)) from (
    select 'class' || coalesce(sum(hashtext(
        concat_ws(' ', c.oid, c.xmin, c.reltuples, c.relpages))::bigint), 0)
    from pg_class c where c.oid >= 16384
    union all
    select concat_ws(' ', 'attribute', count(*), sum(age(a.xmin) - (select age from schema)))
    from pg_attribute a where a.attrelid >= 16384
    {objects}
    union all
    select 'statistics' || count(*) from pg_statistic where starelid >= 16384
    union all
    select 'settings' || count(*) from pg_db_role_setting s
    join pg_database d on d.oid = s.setdatabase and d.datname = current_database()
    union all
    select 'roles' || count(*) from pg_shdepend s
    join pg_database d on d.oid = s.dbid and d.datname = current_database()
    union all
    select 'rights' || coalesce(d.datacl::text, '') || d.datconnlimit || d.datallowconn
    from pg_database d where d.datname = current_database()
) as parts (part)
"""
RESTART_SEQUENCES = """
select count(setval(format('%I.%I', schemaname, sequencename)::regclass, start_value, false))
from pg_sequences where last_value is not null
"""
OBJECTS = (
    "attrdef",
    "constraint",
    "default_acl",
    "event_trigger",
    "extension",
    "namespace",
    "policy",
    "proc",
    "publication",
    "rewrite",
    "trigger",
    "type",
)
OF_OBJECT = """
    union all
    select concat_ws(' ', '{name}', count(*), sum(age(o.xmin) - (select age from schema)))
    from pg_{name} o
    where (o.oid >= 16384 or 'pg_{name}' = 'pg_namespace') and o.xmin <> '1'
"""
TABLES = """
select c.oid::regclass::text from pg_class c
where c.relnamespace = '{schema}'::regnamespace and c.relkind = 'r' order by c.relname
"""
FILL = "insert into {table} select (json_populate_recordset(null::{table}, %s::json)).*"
BYTES = """
select sum(pg_relation_size(c.oid))::bigint from pg_class c
where c.relnamespace = '{schema}'::regnamespace and c.relkind = 'r'
"""
# Tell rows that are those of the template at their places: sooner than what is in them.
MARKS = "select concat_ws(' ', count(*), sum(hashtext(concat(ctid, xmin)))) from {table}"


@dataclass(frozen=True)
class Template:
    """A migrated database that others are copies of, and what tells whether they still are."""

    name: str
    state: str
    rows: dict[str, str]  # of its tables, as JSON; empty for tables without rows
    marks: dict[str, str]  # of the tables with rows

    @cached_property
    def empty(self) -> bytes:
        """Delete what is in other tables, as one statement: the session keeps it prepared."""
        tables = [table for table, rows in self.rows.items() if not rows]
        parts = (f"in_{n} as (delete from {table})" for n, table in enumerate(tables))
        return f"with {', '.join(parts)} select".encode()


@dataclass
class DatabaseServer:
    """A server that hands out databases of their own; migrated ones copy a template."""

    url: str
    worker: str
    schema: str = DEFAULT_SCHEMA
    also: str = ""  # statements for the template, after the schema
    shared: Path | None = None  # where test processes tell each other of their template
    spare: list[str] = field(default_factory=list[str])  # as new
    # The sessions that empty databases: a new one has to read the catalogs first.
    keepers: dict[str, psycopg.Connection[TupleRow]] = field(default_factory=dict)
    template: Template | None = None
    own: psycopg.Connection[TupleRow] | None = None  # makes databases, and drops them

    @contextmanager
    def database(self, *, migrated: bool = True, fresh: bool = False) -> Iterator[str]:
        """Make a database for the length of the block, and give its URL.

        A migrated one may have been another test's, and be another's afterwards, unless it is to
        be `fresh`: then no test has used its tables and indexes.
        """
        used_again = migrated and not fresh
        if used_again and self.spare:
            name = self.spare.pop()
        else:
            name = self._create(self._template().name if migrated else "template1")
        if used_again:
            sessions.keep(self.url_of(name))
        whole = False
        try:
            yield self.url_of(name)
            whole = used_again and self._renew(name)
        finally:
            if whole:
                self.spare.append(name)
            else:
                self._drop(name)

    def close(self) -> None:
        """Leave a server that is not ours as it was."""
        self.drop_spare()
        if self.template is not None and self.shared is None:
            self._drop(self.template.name)
        if self.own is not None:
            self.own.close()

    def drop_spare(self) -> None:
        """Let the next tests have new copies of the template."""
        while self.spare:
            self._drop(self.spare.pop())

    def url_of(self, name: str) -> str:
        return urlsplit(self.url)._replace(path=f"/{name}").geturl()

    def _template(self) -> Template:
        if self.template is None:
            self.template = self._find_template(self.shared) if self.shared else self._migrate()
        return self.template

    def _find_template(self, shared: Path) -> Template:
        """Return the template that all test processes copy; the first one makes it."""
        with shared.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not shared.exists():
                shared.write_text(json.dumps(asdict(self._migrate())))
            return Template(**json.loads(shared.read_text()))

    def _migrate(self) -> Template:
        name = self._create("template1")
        execute(self.url_of(name), render(self.schema))
        execute(self.url_of(name), self.also)
        with psycopg.connect(self.url_of(name), autocommit=True) as connection:
            tables = connection.execute(TABLES.format(schema=self.schema).encode()).fetchall()
            rows = {table: _rows(connection, table) for (table,) in tables}
            filled = list(filter(rows.get, rows))
            for table in filled:
                # Before autovacuum does: no copy would be as the template is, then.
                connection.execute(f"vacuum analyze {table}".encode())
            state, marks = _look(connection, _state(self.schema), _marks(filled))
        return Template(name, state, rows, dict(zip(filled, marks, strict=True)))

    def _renew(self, name: str) -> bool:
        """Empty the tables of a database; return False if it still is not as new."""
        if keeper := self.keepers.get(name):
            with suppress(psycopg.OperationalError):  # the test may have ended it
                return self._empty(keeper)
            keeper.close()
        keeper = self.keepers[name] = psycopg.connect(self.url_of(name), autocommit=True)
        return self._empty(keeper)

    def _empty(self, connection: psycopg.Connection[TupleRow]) -> bool:
        template = self._template()
        idle = sessions.idle(connection.info.dbname)
        # A session that ends by itself at this moment cannot be ended: the next look misses it.
        if not any(_first(connection, END_SESSIONS, [idle]) for _ in range(3)):
            return False
        state, marks, size, _ = _look(
            connection,
            _state(self.schema),
            _marks(template.marks),
            BYTES.format(schema=self.schema),
            RESTART_SEQUENCES,
        )
        if state != template.state or size >= MOST_BYTES:
            return False
        connection.execute(template.empty)
        for (table, expected), found in zip(template.marks.items(), marks, strict=True):
            if found != expected and _rows(connection, table) != template.rows[table]:
                connection.execute(f"delete from {table}".encode())
                connection.execute(FILL.format(table=table).encode(), [template.rows[table]])
        return True

    def _create(self, template: str) -> str:
        name = f"{self.schema}_test_{self.worker}_{os.getpid()}_{next(_numbers)}"
        # The files at once, in half of the time, where no disk is waited for; PostgreSQL 14 cannot.
        copies = self.shared is not None and self._session().info.server_version >= 150_000
        how = " strategy file_copy" if copies else ""
        self._execute(f"create database {name} template {template}{how}")
        return name

    def _drop(self, name: str) -> None:
        if keeper := self.keepers.pop(name, None):
            keeper.close()
        sessions.forget(name)
        self._execute(f"drop database {name} with (force)")

    def _execute(self, statement: str) -> None:
        self._session().execute(statement.encode())

    def _session(self) -> psycopg.Connection[TupleRow]:
        if self.own is None or self.own.closed:
            self.own = psycopg.connect(self.url, autocommit=True)
        return self.own


def execute(url: str, statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statements.encode())


def _first(
    connection: psycopg.Connection[TupleRow], query: str, given: list[object] | None = None
) -> Any:
    row = connection.execute(query.encode(), given).fetchone()
    assert row is not None
    return row[0]


def _look(connection: psycopg.Connection[TupleRow], *queries: str) -> TupleRow:
    """Return the value of each query; together they take half of the time."""
    row = connection.execute(f"select {', '.join(f'({each})' for each in queries)}".encode())
    return row.fetchall()[0]


def _state(schema: str) -> str:
    objects = "".join(OF_OBJECT.format(name=name) for name in OBJECTS)
    return STATE.format(objects=objects, schema=schema)


def _marks(tables: Iterable[str]) -> str:
    return f"select array[{', '.join(f'({MARKS.format(table=each)})' for each in tables)}]::text[]"


def _rows(connection: psycopg.Connection[TupleRow], table: str) -> str:
    query = f"select coalesce(json_agg(t order by t::text)::text, '') from {table} t"
    return str(_first(connection, query))
