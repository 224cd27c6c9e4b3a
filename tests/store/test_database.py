"""Which database is used, and the error for each way in which it cannot be."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
import sqlalchemy
from tests.proxy import Proxy

from holdfast.database.connection import connect
from holdfast.database.embedded import EmbeddedServer
from holdfast.database.resolve import Source, resolve_database
from holdfast.database.urls import redact
from holdfast.errors import (
    DatabaseError,
    DatabaseUnavailable,
    EmbeddedServerError,
    InsufficientRights,
    InvalidDatabaseURL,
    ServerTooOld,
)

FIRST, SECOND, THIRD = (f"postgresql://host/{name}" for name in ("first", "second", "third"))
BOTH = {"HOLDFAST_DATABASE_URL": SECOND, "DATABASE_URL": THIRD}


@pytest.mark.parametrize(
    ("option", "environ", "url", "source"),
    [
        (FIRST, BOTH, FIRST, Source.OPTION),
        (None, BOTH, SECOND, Source.HOLDFAST_VARIABLE),
        (None, {"DATABASE_URL": THIRD}, THIRD, Source.VARIABLE),
        (None, {"HOLDFAST_DATABASE_URL": "", "DATABASE_URL": THIRD}, THIRD, Source.VARIABLE),
    ],
)
def test_the_nearest_url_wins(
    option: str | None, environ: dict[str, str], url: str, source: Source
) -> None:
    found = resolve_database(option, environ=environ)
    assert (found.url, found.source) == (url, source)


def test_without_a_url_the_embedded_server_is_used(
    embedded_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(embedded_server.home))
    with resolve_database(environ={}) as found:
        assert (found.url, found.source) == (embedded_server.url, Source.EMBEDDED)
        assert str(embedded_server.home) in str(found)
        found.ensure_running()
    with pytest.raises(EmbeddedServerError, match="released"):
        found.ensure_running()


def test_a_named_data_home_wins_over_the_environment(embedded_server: EmbeddedServer) -> None:
    with resolve_database(home=embedded_server.home, environ=BOTH) as found:
        assert found.source is Source.EMBEDDED


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+asyncpg"])
def test_the_schemes_in_use_for_postgresql_are_understood(scheme: str) -> None:
    assert resolve_database(f"{scheme}://host/shop").url == "postgresql://host/shop"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("me:s3cret@host/shop", "no scheme"),
        ("host=localhost password=s3cret", "no scheme"),
        ("mysql://me:s3cret@host/shop", "'mysql'"),
        ("postgresql://me:s3cret@host:port/shop", "host or port"),
    ],
)
def test_an_invalid_url_is_refused_without_showing_it(url: str, message: str) -> None:
    with pytest.raises(InvalidDatabaseURL, match=message) as caught:
        resolve_database(None, environ={"DATABASE_URL": url})
    assert "$DATABASE_URL" in str(caught.value)
    assert "postgresql://" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_passwords_are_not_printed() -> None:
    found = resolve_database("postgresql://me:s3cret@host:5/shop?password=s3cret&sslmode=require")
    for text in (str(found), repr(found), redact(found.url)):
        assert "s3cret" not in text
        assert "me:***@host:5/shop" in text
        assert "sslmode=require" in text


def test_the_embedded_url_serves_every_driver(durable_server: EmbeddedServer) -> None:
    url = durable_server.url
    with psycopg.connect(url) as connection:
        assert connection.execute("show synchronous_commit").fetchone() == ("on",)
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as alchemy:
        assert alchemy.execute(sqlalchemy.text("show fsync")).scalar() == "on"
    engine.dispose()


async def test_a_refused_connection_says_that_no_server_answers() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(DatabaseUnavailable, match=f"{port}.*no server answers") as caught:
            await connect(f"postgresql://me:s3cret@127.0.0.1:{port}/shop")
    assert "s3cret" not in str(caught.value)


async def test_a_missing_socket_says_that_no_server_answers(tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnavailable, match="no server answers"):
        await connect(f"postgresql://me@/shop?host={tmp_path}")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("target_session_attrs=standby", "none of the hosts is 'standby' now"),
        ("sslmode=require", "cannot be encrypted as the URL asks.*check sslmode"),
        ("sslmode=verify-full&sslrootcert=system", "cannot be encrypted as the URL asks"),
    ],
)
async def test_a_server_that_is_not_what_the_url_asks_for_is_told(
    embedded_server: EmbeddedServer, query: str, message: str
) -> None:
    with Proxy(embedded_server.url) as proxy, pytest.raises(DatabaseUnavailable, match=message):
        await connect(f"{proxy.url}?{query}")


async def test_a_parameter_that_the_server_does_not_know_is_named(
    embedded_server: EmbeddedServer,
) -> None:
    with pytest.raises(InvalidDatabaseURL, match='"nosuch": take the parameter out'):
        await connect(f"{embedded_server.url}&nosuch=1")


async def test_options_that_the_server_does_not_know_are_named(
    embedded_server: EmbeddedServer,
) -> None:
    """Neon's `options=endpoint=…` means something to its proxy alone."""
    known = r"argument for server process: endpoint=ep-cool-1\): correct options="
    with pytest.raises(InvalidDatabaseURL, match=known):
        await connect(f"{embedded_server.url}&options=endpoint%3Dep-cool-1")


async def test_settings_of_the_server_may_stand_in_the_url(embedded_server: EmbeddedServer) -> None:
    options = "options=-c%20statement_timeout%3D777&application_name=shop&search_path=pg_catalog"
    connection = await connect(f"{embedded_server.url}&{options}")
    for name, value in (
        ("statement_timeout", "777ms"),
        ("application_name", "shop"),
        ("search_path", "pg_catalog"),
    ):
        assert await connection.fetchval(f"show {name}") == value
    await connection.close()


async def test_an_unknown_database_is_named(embedded_server: EmbeddedServer) -> None:
    url = embedded_server.url.replace("/holdfast?", "/nowhere?")
    with pytest.raises(DatabaseUnavailable, match=r"no database 'nowhere'.*createdb nowhere"):
        await connect(url)


async def test_an_unknown_role_is_named(embedded_server: EmbeddedServer) -> None:
    url = embedded_server.url.replace("holdfast@", "stranger:s3cret@")
    with pytest.raises(DatabaseUnavailable, match=r"login of role 'stranger'.*check") as caught:
        await connect(url)
    assert "s3cret" not in str(caught.value)


async def test_a_role_that_may_not_connect_is_told_so(empty_database_url: str) -> None:
    name = urlsplit(empty_database_url).path[1:]
    with psycopg.connect(empty_database_url, autocommit=True) as owner:
        owner.execute("create role visitor login")
        try:
            owner.execute(f"revoke connect on database {name} from public".encode())
            with pytest.raises(InsufficientRights, match=f"'visitor' may not connect.*{name}"):
                await connect(empty_database_url.replace("holdfast@", "visitor@"))
        finally:
            owner.execute(f"grant connect on database {name} to public".encode())
            owner.execute("drop role visitor")


async def test_a_database_that_lacks_letters_is_refused(empty_database_url: str) -> None:
    """Fault: `migrate` said which bytes of a file of functions the server could not take."""
    how = "encoding 'LATIN1' template template0 lc_collate 'C' lc_ctype 'C'"
    with psycopg.connect(empty_database_url, autocommit=True) as owner:
        owner.execute(f"create database latin {how}".encode())
        try:
            name = urlsplit(empty_database_url).path[1:]
            with pytest.raises(DatabaseError, match=r"encoding LATIN1.*'UTF8'"):
                await connect(empty_database_url.replace(f"/{name}", "/latin"))
        finally:
            owner.execute("drop database latin with (force)")


async def test_a_server_older_than_14_is_refused() -> None:
    async with pretend_server("13.9") as port:
        with pytest.raises(ServerTooOld, match=r"PostgreSQL 13\.9; holdfast needs 14") as caught:
            await connect(f"postgresql://me@127.0.0.1:{port}/shop?sslmode=disable")
    assert (caught.value.found, caught.value.needed) == ("13.9", "14")


@asynccontextmanager
async def pretend_server(version: str) -> AsyncIterator[int]:
    """A server that accepts every login and says that it is of this version."""
    greeting = (
        message(b"R", struct.pack("!i", 0))
        + message(b"S", f"server_version\0{version}\0".encode())
        + message(b"S", b"client_encoding\0UTF8\0")
        + message(b"K", struct.pack("!ii", 1, 1))
        + message(b"Z", b"I")
    )

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(struct.unpack("!i", await reader.readexactly(4))[0] - 4)
        writer.write(greeting)
        await reader.readuntil(b"X\0\0\0\4")
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body
