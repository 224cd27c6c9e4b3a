"""What a server says is told with a way out, streams have one name for all, and few are known."""

from __future__ import annotations

import psycopg
import pytest
from redis._parsers.base import BaseParser
from redis.asyncio import Redis

from holdfast.errors import DatabaseUnavailable
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.redis import sending
from holdfast.store.redis.sending import Sender
from holdfast.store.redis.server import RedisServer, trouble
from holdfast.types import Notice


@pytest.mark.parametrize(
    ("said", "way_out"),
    [
        ("LOADING Redis is loading the dataset in memory", "wait until the server has loaded"),
        ("MASTERDOWN Link with MASTER is down", "name the primary server"),
        ("READONLY You can't write against a read only replica.", "name the primary server"),
        ("CLUSTERDOWN Hash slot not served", "a cluster is not supported"),
        ("MISCONF Redis is configured to save RDB snapshots", "put this right at the server"),
        ("ERR unknown command 'XADD'", "put this right at the server"),
        ("ERR max number of clients reached", "raise maxclients"),
        ("OOM command not allowed", "give the server more memory"),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", "delete this key"),
    ],
)
def test_each_refusal_has_its_way_out(said: str, way_out: str) -> None:
    found = trouble(BaseParser.parse_error(said))
    assert "the server refuses" in found.what
    assert way_out in found.way_out


def test_redis_is_not_blamed_for_a_database_that_does_not_answer() -> None:
    """Fault: a worker that first read hints just then said: start Redis, or correct --redis."""
    found = trouble(DatabaseUnavailable("db: no server answers"))
    assert str(found) == (
        "PostgreSQL did not say which streams are to be read: db: no server answers; "
        "it is asked again"
    )


async def test_the_name_of_a_schema_does_not_follow_how_a_role_writes_dates(
    database_url: str,
) -> None:
    names, name = set[str](), database_url.rpartition("?")[0].rpartition("/")[2]
    for style in ("ISO", "German", "SQL, DMY"):
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute(f"alter database {name} set datestyle to '{style}'".encode())
        store = PostgresStore(database_url)
        await store.open()
        names.add(await store._database.identity())
        await store.close()
    assert len(names) == 1
    assert names.pop().startswith(f"holdfast {name} 20")


class Accepting(RedisServer):
    """Takes every hint, and counts how often a stream is told when it expires."""

    def __init__(self) -> None:
        super().__init__("redis://nowhere")
        self.expiries: list[str] = []

    async def connect(self, answer_seconds: float) -> Redis:
        return self  # type: ignore[return-value]

    async def xadd(self, *_: object, **__: object) -> None:
        pass

    async def expire(self, stream: str, seconds: int) -> None:
        self.expiries.append(stream)


async def test_streams_that_are_used_no_more_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "_MOST_KNOWN", 3)
    server = Accepting()
    sender = Sender(server)
    for number in range(20):
        for _ in range(2):
            assert not await sender.send({Notice("work", "mail"): f"reply-{number}"})
    assert server.expiries == [f"reply-{number}" for number in range(20)]  # once each
    assert len(sender._kept) <= 3
