"""Open a client on the database that the global options name."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

import click
import msgspec

from holdfast.cli.exits import USAGE, Refusal
from holdfast.cli.settings import Settings
from holdfast.client import Client
from holdfast.database.connection import connected
from holdfast.database.migrate import MigrationReport, plan, prepare_schema
from holdfast.database.resolve import Connecting, Database, resolve_database
from holdfast.database.schema import check_alone, check_schema
from holdfast.definitions.app import App
from holdfast.insight.wording import behind
from holdfast.payloads import readable, with_payloads
from holdfast.store.opening import opened_store
from holdfast.store.port import Store
from holdfast.store.port.reads import ReadFrom, noting_reads

T = TypeVar("T")

_CONNECTIONS = 2
_OLD_SECONDS = 1.0


class Link(msgspec.Struct, frozen=True):
    """An open client, with its database and its store."""

    database: Database
    store: Store
    client: Client


def find_database(settings: Settings, *, make: bool = True) -> Database:
    """Find the database that the global options and the environment name.

    Without `make`, an embedded database that does not exist is not created. Raises
    DatabaseUnavailable.
    """
    connecting = Connecting(
        settings.prepare, settings.listen_database, settings.redis, settings.read_database
    )
    return resolve_database(settings.database, settings.data, connecting=connecting, make=make)


@contextmanager
def database_of(settings: Settings, *, make: bool = True) -> Generator[Database]:
    """Find the database, and keep an embedded server running while the block lasts.

    The schema of an embedded database is brought up to date: no other program does that.
    """
    with find_database(settings, make=make) as database:
        if database.server is not None:
            asyncio.run(prepare_schema(database.url, settings.schema))
        yield database


def refuse_several(database: Database, what: str, instead: str) -> None:
    """Refuse several databases for a command that works on one; say what to do instead."""
    if count := len(database.shards):
        raise Refusal(f"{what} is for one database, and {count} are named: {instead}", USAGE)


@contextmanager
def checked_database(
    settings: Settings, *, make: bool = True, opens: bool = False
) -> Generator[Database]:
    """Find the database, and refuse one whose schema is not the one of this release.

    Several must be the shards of one engine, and one of them must answer: that is checked here
    unless the caller `opens` them at once, which does the same.
    """
    with database_of(settings, make=make) as database:
        if database.shards and not opens:
            asyncio.run(_check_shards(database, settings.schema))
        elif not database.shards and database.server is None:
            asyncio.run(_check(database.url, settings.schema))
        yield database


async def _check(url: str, schema: str) -> None:
    async with connected(url) as connection:
        await check_schema(connection, schema)
        await check_alone(connection, schema)


async def _check_shards(database: Database, schema: str) -> None:
    async with opened_store(database, schema, connections=1):
        pass


async def plan_schema(url: str, schema: str) -> MigrationReport:
    """Return what would bring a schema up to date."""
    async with connected(url) as connection:
        return await plan(connection, schema)


def with_link(
    settings: Settings,
    work: Callable[[Link], Awaitable[T]],
    *,
    app: App | None = None,
    make: bool = False,
    stored: bool = False,
) -> T:
    """Open a client, do a command's work with it, and close it.

    An embedded database that does not exist is created only with `make`: commands that read runs
    or send them messages do not create one. With `stored`, payloads are as the database has them:
    nothing is opened, and nothing is labelled. Raises DatabaseUnavailable.
    """

    known = None if app is None else app.payloads  # the client takes these of the app itself
    readers = None if stored else known or readable()

    async def connected(database: Database) -> T:
        async with (
            opened_store(database, settings.schema, _CONNECTIONS) as opened,
            Client(store=with_payloads(opened, None if known else readers), app=app) as client,
        ):
            with noting_reads() as notes:
                answer = await work(Link(database, with_payloads(opened, readers), client))
            _tell(notes)
            return answer

    with checked_database(settings, make=make, opens=True) as database:
        return asyncio.run(connected(database))


def _tell(notes: ReadFrom) -> None:
    """Say on stderr that a list is old, or that it lacks the runs of a shard, if it is so."""
    if notes.away:
        numbers = ", ".join(map(str, sorted(notes.away)))
        click.echo(f"without shard {numbers}, which is away", err=True)
    lag = notes.lag_seconds
    if notes.source == "replica" and (lag is None or lag >= _OLD_SECONDS):
        click.echo(f"from the read database, {behind(lag)}", err=True)
