"""Read what is applied to a schema, and check that this release can work with it."""

from __future__ import annotations

from typing import TypeAlias

import asyncpg
import msgspec
from asyncpg.pool import PoolConnectionProxy

from holdfast._version import __version__
from holdfast.database.scripts import (
    DEFAULT_SCHEMA,
    Migration,
    Scripts,
    check_schema_name,
    load_scripts,
)
from holdfast.errors import (
    DatabaseError,
    InsufficientRights,
    SchemaMissing,
    SchemaOutdated,
    SchemaTooNew,
    ServerTooOld,
    ShardsChanged,
)

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]"

_OLDEST_SERVER = 14
_ENCODINGS = ("UTF8", "SQL_ASCII")  # the latter takes all


class SchemaState(msgspec.Struct, frozen=True):
    """What is applied to a schema: the migrations' numbers, and which set of functions."""

    schema: str
    database: str
    exists: bool
    versions: frozenset[int] = frozenset()
    checksum: str | None = None
    release: str | None = None

    def missing(self, scripts: Scripts) -> tuple[Migration, ...]:
        """Return the migrations that are not applied, in order."""
        return tuple(each for each in scripts.migrations if each.version not in self.versions)

    def has_functions(self, scripts: Scripts) -> bool:
        """Return True if the schema's functions are those of the files."""
        return self.exists and self.checksum == scripts.checksum

    def refuse_newer(self, scripts: Scripts) -> None:
        """Refuse a schema that a later release than this one has migrated.

        Raises:
            SchemaTooNew: it has migrations unknown here, or functions of a later release.
        """
        unknown = sorted(self.versions - scripts.versions)
        if unknown:
            detail = f"migration {', '.join(map(str, unknown))} is unknown here"
        elif self.release is not None and _order(self.release) > _order(__version__):
            detail = "its functions are newer"
        else:
            return
        raise SchemaTooNew(
            f"{self} was migrated by holdfast {self.release or 'of a later release'}, "
            f"and this is {__version__} ({detail}): upgrade holdfast"
        )

    def __str__(self) -> str:
        return f"schema {self.schema!r} of database {self.database!r}"


async def read_state(connection: Connection, schema: str) -> SchemaState:
    """Read what is applied to a schema.

    Raises:
        InsufficientRights: the role may not look.
        ServerTooOld: the server is older than PostgreSQL 14.
    """
    check_server(connection)
    check_schema_name(schema)
    namespace = f"to_regnamespace('\"{schema}\"')"
    database, role, found = await _one(
        connection,
        f"select current_database(), current_user, case when has_schema_privilege({namespace}, "
        f"'usage') then to_regclass('\"{schema}\".schema_migrations') is not null "
        f"else {namespace} is not null end",
    )
    if not found:
        return SchemaState(schema, database, exists=False)
    try:
        versions, functions = await _one(
            connection,
            f'select array(select version from "{schema}".schema_migrations), '
            f'(select (checksum, release) from "{schema}".schema_functions limit 1)',
        )
    except asyncpg.InsufficientPrivilegeError as error:
        raise InsufficientRights(
            f"the role {role!r} may not use schema {schema!r} of database {database!r}: "
            "connect as its owner, or have the owner grant it"
        ) from error
    checksum, release = functions or (None, None)
    return SchemaState(schema, database, True, frozenset(versions), checksum, release)


def check_server(connection: Connection) -> None:
    """Refuse a server that lacks what the engine's SQL uses.

    Raises:
        ServerTooOld: the server is older than PostgreSQL 14.
        DatabaseError: the database's encoding lacks letters.
    """
    settings = connection.get_settings()
    if connection.get_server_version().major < _OLDEST_SERVER:
        found = str(settings.server_version).split()[0]
        raise ServerTooOld(found, str(_OLDEST_SERVER))
    encoding = getattr(settings, "server_encoding", _ENCODINGS[0])  # a pooler may not say it
    if encoding not in _ENCODINGS:
        raise DatabaseError(
            f"the database has the encoding {encoding}, which lacks letters of payloads: create "
            "one with encoding 'UTF8' (and template template0)"
        )


async def check_schema(
    connection: Connection, schema: str = DEFAULT_SCHEMA, scripts: Scripts | None = None
) -> None:
    """Refuse to work with a schema that is not the one of this release.

    Raises:
        SchemaMissing: there is none yet.
        SchemaOutdated: an earlier release made it.
        SchemaTooNew: a later release has migrated it.
        InsufficientRights: the role may not use it.
        ServerTooOld: the server is older than PostgreSQL 14.
    """
    scripts = scripts or load_scripts()
    state = await read_state(connection, schema)
    command = migrate_command(schema)
    if not state.exists:
        raise SchemaMissing(f"{state} has no holdfast tables: run `{command}`")
    state.refuse_newer(scripts)
    missing = ", ".join(map(str, state.missing(scripts)))
    if missing:
        raise SchemaOutdated(f"{state} lacks {missing}: run `{command}`")
    if not state.has_functions(scripts):
        whose = f"holdfast {state.release}" if state.release else "no release"
        if state.release == __version__:
            whose = f"another build of holdfast {__version__}"
        raise SchemaOutdated(
            f"{state} has the functions of {whose}, not those of this one: run `{command}`"
        )


async def check_alone(connection: Connection, schema: str = DEFAULT_SCHEMA) -> None:
    """Refuse a database that is one of several that are one engine, unless all are named.

    Raises ShardsChanged. The schema is the one of this release.
    """
    found = await connection.fetchrow(
        f'select number, (select max(c) from unnest(counts) as c) from "{schema}".shard'
    )
    if found is not None and found[1] > 1:
        raise ShardsChanged(
            f"this database is shard {found[0]} of {found[1]}, and it is named alone: name all "
            f"{found[1]} databases, in the order of their numbers, with --database for each or in "
            "$HOLDFAST_DATABASE_URL, separated by spaces"
        )


def migrate_command(schema: str) -> str:
    """Write the command that brings a schema up to date."""
    option = "" if schema == DEFAULT_SCHEMA else f" --schema {schema}"
    return f"holdfast migrate{option}"


async def _one(connection: Connection, query: str) -> asyncpg.Record:
    row = await connection.fetchrow(query)
    assert row is not None, "a query without FROM has one row"
    return row


def _order(release: str) -> tuple[int, ...]:
    """Return the leading numbers of a release, by which releases are compared."""
    return tuple(int(part) for part in release.split(".")[:3] if part.isdigit())
