"""Which database to use: the one that is named, the environment's, or the embedded one."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import msgspec

from holdfast.database.urls import read_url, redact, split_urls
from holdfast.errors import ConfigurationError, DatabaseUnavailable
from holdfast.values.numbers import is_a, true_or_false

if TYPE_CHECKING:
    from holdfast.database.embedded import EmbeddedServer

LISTEN_SOURCE: Final = "--listen-database or $HOLDFAST_LISTEN_DATABASE_URL"
READ_SOURCE: Final = "--read-database or $HOLDFAST_READ_DATABASE_URL"
_YES: Final = frozenset({"1", "on", "true", "yes"})
_NO: Final = frozenset({"0", "off", "false", "no"})


class Source(enum.StrEnum):
    """Where a database's URL came from."""

    OPTION = "--database"
    HOLDFAST_VARIABLE = "$HOLDFAST_DATABASE_URL"
    VARIABLE = "$DATABASE_URL"
    EMBEDDED = "embedded"


class Connecting(msgspec.Struct, frozen=True):
    """How to connect, besides the URL.

    `prepare` decides whether statements are prepared by name; None: if no pooler is in between.
    `listen_url` is the address at which to listen for notifications, if it is another one,
    `redis_url` the Redis that wakes workers for new runs and activities, and `read_url` a replica
    for lists.
    """

    prepare: bool | None = None
    listen_url: str | None = None
    redis_url: str | None = None
    read_url: str | None = None

    def __post_init__(self) -> None:
        if self.prepare is not None:
            true_or_false(self.prepare, "prepare")
        for name, url in (
            ("listen_database", self.listen_url),
            ("redis", self.redis_url),
            ("read_database", self.read_url),
        ):
            if url is not None:
                is_a(str, url, name)


@dataclass(frozen=True, slots=True, repr=False)
class Database:
    """A database's URL and where it came from; printed without its password.

    If several are named, `shards` has all of them, and `url` is the first. `number` is that of one
    of several, see `shard`.

    It holds the embedded server until `close`, or until the end of a `with` block.
    """

    url: str
    source: Source
    server: EmbeddedServer | None = None
    connecting: Connecting = field(default_factory=Connecting)
    shards: tuple[str, ...] = ()
    number: int | None = None

    @property
    def parts(self) -> list[Database]:
        """Each of the databases; this one if it is alone."""
        return [self.shard(number) for number in range(len(self.shards))] or [self]

    def shard(self, number: int) -> Database:
        """Return one of several databases, to be used by itself."""
        return replace(self, url=self.shards[number], shards=(), number=number)

    def ensure_running(self) -> None:
        """Restart the embedded server if it died; do nothing for any other server.

        Raises:
            EmbeddedServerError: it does not start again.
        """
        if self.server is not None:
            self.server.ensure_running()

    def close(self) -> None:
        """Release the embedded server, if it is one."""
        if self.server is not None:
            self.server.release()

    def __str__(self) -> str:
        if self.server is not None:
            return f"the embedded database in {self.server.home}"
        urls = ", ".join(map(redact, self.shards or [self.url]))
        return f"{urls} (from {self.source})"

    def __repr__(self) -> str:
        return f"Database(url={redact(self.url)!r}, source={self.source!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def resolve_database(
    option: str | None = None,
    home: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    *,
    connecting: Connecting | None = None,
    make: bool = True,
) -> Database:
    """Find the database to use, and start the embedded one if it is that.

    The first of these: the option, $HOLDFAST_DATABASE_URL, $DATABASE_URL, the embedded server. If a
    data home is named, it is the embedded server, whatever the environment says.

    Args:
        option: the URL given on the command line or in code, or several, separated by white space.
        home: the embedded server's data home, by default $HOLDFAST_HOME or ~/.holdfast.
        environ: the environment, that of the process by default.
        connecting: how to connect; $HOLDFAST_PREPARE completes it, and for a database that the
            environment names, $HOLDFAST_LISTEN_DATABASE_URL and $HOLDFAST_READ_DATABASE_URL;
            $HOLDFAST_REDIS_URL too.
        make: whether to make an embedded database that is not there yet.

    Raises:
        DatabaseUnavailable: it is the embedded one, not there yet, and not to be made.
        InvalidDatabaseURL: what was found is not a PostgreSQL URL.
        ConfigurationError: $HOLDFAST_PREPARE is neither on nor off, the embedded one is to have a
            replica, or of several databases one is named twice, or they cannot be used together.
        EmbeddedServerError: the embedded server does not start.
    """
    given = connecting or Connecting()
    if option is not None:
        is_a(str, option, "database")
    if (named := _named(option, home, environ)) is not None:
        source, text = named
        found = _connecting(given, source, environ)
        if len(urls := split_urls(text)) > 1:
            return _several(urls, source, found, home)
        where = None if source is Source.OPTION else source  # the caller's words differ
        return Database(read_url(text, where).url, source, connecting=found)
    if given.read_url is not None:
        raise ConfigurationError(
            "the embedded database has no replica: name a database with --database or "
            "$HOLDFAST_DATABASE_URL, or leave --read-database out"
        )
    return _embedded(home, make, Connecting(redis_url=_redis_url(given, environ)))


def names_several(
    option: str | None, home: Path | None, environ: Mapping[str, str] = os.environ
) -> bool:
    """Return True if `resolve_database` would find several databases."""
    named = _named(option, home, environ)
    return named is not None and len(split_urls(named[1])) > 1


def _named(
    option: str | None, home: Path | None, environ: Mapping[str, str]
) -> tuple[Source, str] | None:
    candidates = [(Source.OPTION, option)]
    if home is None:
        candidates += [
            (Source.HOLDFAST_VARIABLE, environ.get("HOLDFAST_DATABASE_URL")),
            (Source.VARIABLE, environ.get("DATABASE_URL")),
        ]
    return next(((source, text) for source, text in candidates if text), None)


def _several(
    urls: Sequence[str], source: Source, connecting: Connecting, home: Path | None
) -> Database:
    """Return the databases of a list. Raises InvalidDatabaseURL and ConfigurationError."""
    from holdfast.types import MOST_SHARDS  # it takes time, which one database does not need

    if len(urls) > MOST_SHARDS:
        raise ConfigurationError(
            f"{len(urls)} databases are named, and an engine has at most {MOST_SHARDS} shards"
        )
    for what, given in (
        ("--data", home),
        (LISTEN_SOURCE, connecting.listen_url),
        (READ_SOURCE, connecting.read_url),
    ):
        if given is not None:
            raise ConfigurationError(f"{what} is for one database: several are named, leave it out")
    places: dict[object, int] = {}
    targets = [read_url(url, f"place {at} of the list") for at, url in enumerate(urls, start=1)]
    for at, target in enumerate(targets, start=1):
        place = target.hosts, target.database or target.user
        if (before := places.setdefault(place, at)) != at:
            raise ConfigurationError(
                f"places {before} and {at} of the list name the same database: name each once"
            )
    shards = tuple(target.url for target in targets)
    return Database(shards[0], source, connecting=connecting, shards=shards)


def _connecting(given: Connecting, source: Source, environ: Mapping[str, str]) -> Connecting:
    """Return the caller's settings, completed from the environment.

    The environment's addresses for listening and for lists belong to the environment's database:
    those of another database would be wrong for it.
    """
    prepare, listen_url, replica = given.prepare, given.listen_url, given.read_url
    if prepare is None:
        prepare = _switch("HOLDFAST_PREPARE", environ)
    if source is not Source.OPTION:
        listen_url = listen_url or environ.get("HOLDFAST_LISTEN_DATABASE_URL")
        replica = replica or environ.get("HOLDFAST_READ_DATABASE_URL")
    listen_url = read_url(listen_url, LISTEN_SOURCE).url if listen_url else None
    replica = read_url(replica, READ_SOURCE).url if replica else None
    return Connecting(prepare, listen_url, _redis_url(given, environ), replica)


def _redis_url(given: Connecting, environ: Mapping[str, str]) -> str | None:
    """Return the address of Redis: unlike that for listening, it suits every database."""
    return given.redis_url or environ.get("HOLDFAST_REDIS_URL") or None


def _switch(name: str, environ: Mapping[str, str]) -> bool | None:
    text = environ.get(name, "").strip().lower()
    if text in _YES | _NO:
        return text in _YES
    if text:
        raise ConfigurationError(f"${name} is {text!r}: write on or off, or leave it out")
    return None


def _embedded(home: Path | None, make: bool, connecting: Connecting) -> Database:
    # Imported here: it needs what only Unix has, and other databases do not.
    from holdfast.database.embedded import EmbeddedServer, default_home, is_made

    if not make and not is_made(home):
        raise DatabaseUnavailable(
            f"there is no embedded database in {home or default_home()} yet: `holdfast dev "
            "MODULE:APP` makes it. If you mean another database, name it with --database or "
            "$HOLDFAST_DATABASE_URL"
        )
    server = EmbeddedServer.acquire(home)
    return Database(server.url, Source.EMBEDDED, server, connecting)
