"""Several databases as one engine: stores over them, and workers of all."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit
from uuid import UUID

import asyncpg

from holdfast import App, Client
from holdfast.database.embedded import EmbeddedServer
from holdfast.database.urls import split_urls
from holdfast.store.port import Store
from holdfast.store.postgres import PostgresStore
from holdfast.store.shards import sharded
from holdfast.store.shards.homes import home_of
from holdfast.types import ShardState
from holdfast.values.ids import uuid7
from holdfast.worker import Worker
from holdfast.worker.options import WorkerOptions
from holdfast.worker.shard import Shard
from tests.databases import execute


async def make_engine(stores: Sequence[Store], counts: tuple[int, ...] | None = None) -> None:
    """Make the databases of these open stores the shards of one engine, or tell them of more."""
    known = counts or (len(stores),)
    for number, store in reversed([*enumerate(stores)]):
        assert await store.set_shard_state(ShardState("engine", number, known)) != "other"


def opened(urls: Sequence[str]) -> list[Store]:
    """Return stores of databases, not open yet."""
    return [PostgresStore(url, tells=True) for url in urls]


class ShardedServer(EmbeddedServer):
    """A server with several databases, the shards of one engine; `url` names all of them."""

    count = 1

    @property
    def url(self) -> str:
        """The URLs of all databases."""
        first = super().url
        return " ".join(
            first.replace("/holdfast?", f"/holdfast_{number}?") if number else first
            for number in range(self.count)
        )

    def make_shards(self, count: int) -> None:
        """Copy its database, which nobody uses, and make all of them one engine.

        Each program has connections to all: with those that a test has cut, more than a server has.
        """
        first = self.url
        execute(first, f"alter system set max_connections = {100 * count}")
        os.kill(self.postmaster_pid, signal.SIGKILL)
        self.ensure_running()
        for number in range(1, count):
            execute(
                first.replace("/holdfast?", "/template1?"),
                f"create database holdfast_{number} template holdfast",
            )
        self.count = count
        for number, url in enumerate(split_urls(self.url)):
            execute(url, f"select holdfast.set_shard_state('engine', {number}, '{{{count}}}')")


def id_of(shard: int) -> UUID:
    """Return an id that belongs to a shard."""
    while home_of(run_id := uuid7(), range(3)) != shard:
        pass
    return run_id


class Workers:
    """A worker of each shard, started and stopped as one."""

    def __init__(
        self,
        app: App,
        stores: Sequence[Store],
        urls: Sequence[str],
        options: WorkerOptions | None = None,
    ) -> None:
        def around() -> Store:
            return sharded(opened(urls) if urls else stores)

        self.all = [
            Worker(app, store, options, shard=Shard(number, around()))
            for number, store in enumerate(stores)
        ]

    async def start(self) -> None:
        """Start all."""
        for each in self.all:
            await each.start()

    async def stop(self, grace: float = 0) -> None:
        """Stop all."""
        for each in self.all:
            await each.stop(grace)


@asynccontextmanager
async def engine_of(stores: Sequence[Store]) -> AsyncIterator[None]:
    """Open the stores of databases, make them one engine, and close them at the end."""
    for each in stores:
        await each.open()
    await make_engine(stores)
    yield
    for each in stores:
        await each.close()


@asynccontextmanager
async def client_of(app: App | None, urls: Sequence[str]) -> AsyncIterator[Client]:
    """Provide a client over these databases."""
    store = sharded(opened(urls))
    await store.open()
    try:
        async with Client(store=store, app=app) as client:
            yield client
    finally:
        await store.close()


@asynccontextmanager
async def away(url: str) -> AsyncIterator[None]:
    """Let nobody use a database within the block."""
    place = urlsplit(url)
    name = place.path[1:]
    connection = await asyncpg.connect(place._replace(path="/postgres").geturl())

    async def rename(before: str, after: str) -> None:
        """Rename it once no session is left: one that comes in between holds it up for 5 s."""
        await connection.execute(f'alter database "{before}" allow_connections false')
        while True:
            await connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", before
            )
            with suppress(asyncpg.ObjectInUseError):
                await connection.execute(f'alter database "{before}" rename to "{after}"')
                await connection.execute(f'alter database "{after}" allow_connections true')
                return

    try:
        await rename(name, f"{name}_away")
        try:
            yield
        finally:
            await rename(f"{name}_away", name)
    finally:
        await connection.close()
