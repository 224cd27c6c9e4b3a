"""Read from a replica, and from the database itself while the replica cannot be used."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

import asyncpg
import msgspec

from holdfast.database.connection import LOST, Connection, connect_error
from holdfast.database.schema import read_state
from holdfast.database.urls import read_url, redact
from holdfast.errors import ConfigurationError, DatabaseError, DatabaseUnavailable, SchemaMissing
from holdfast.store.port.reads import read_from
from holdfast.store.postgres.database import Database, Pool, translated
from holdfast.store.postgres.errors import error_class
from holdfast.types import ReadCheck
from holdfast.values.loggers import get_logger

T = TypeVar("T")

logger = get_logger("holdfast.database")

_AWAY_SECONDS: Final = 5.0  # after which a replica that could not be used is tried again
_LAG_SECONDS: Final = 1.0  # that a measured lag is believed
_LATE_SECONDS: Final = 60.0
_CATCH_UP_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.05
_ANSWER_SECONDS: Final = 2.0  # of either server: lists do not wait longer for one that is away

# Streaming copies the whole server: its number and those of its databases. A server that is not in
# recovery is not a replica any more, unless it is the primary: that started at the same moment.
_IDENTITY: Final = """
select s.system_identifier, d.oid::bigint, pg_is_in_recovery(),
    case when not pg_is_in_recovery() then pg_postmaster_start_time() end
from pg_control_system() as s, pg_database as d where d.datname = current_database()
"""
_HAS_REPLAYED: Final = (
    "select case when pg_is_in_recovery() then pg_last_wal_replay_lsn() >= $1::text::pg_lsn end"
)
_WRITTEN: Final = "select pg_current_wal_flush_lsn()::text, clock_timestamp()"
# Without the primary's answer it is the time since the last commit that was replayed: at most that.
_LAG: Final = """
select pg_is_in_recovery(), case when not pg_is_in_recovery() then 0
    when pg_last_wal_replay_lsn() >= $1::text::pg_lsn then 0
    else greatest(0, extract(epoch from
        coalesce($2, clock_timestamp()) - pg_last_xact_replay_timestamp())) end::float8
"""


class _Identity(NamedTuple):
    """Which server and which database answers, and when it started if it is a primary."""

    system: int
    database: int
    is_standby: bool
    started_at: Any


class _Unusable(Exception):
    """The replica cannot be used now."""


class _Behind(Exception):
    """The server that was asked lacks changes that the call needs."""


class FollowingDatabase(Database):
    """Calls functions that only read on a replica of another database.

    It connects when it is first called. While the replica cannot be reached, lacks a migration or
    is not a replica any more, calls go to the primary; a call that replay interrupts is made there
    at once. One that takes too long is not made again: it would take as long there.
    """

    _tries = 1

    def __init__(self, primary: Database, url: str, prepare: bool | None) -> None:
        super().__init__(
            url,
            schema=primary.schema,
            connections=primary.connections,
            prepare=prepare,
            query_seconds=primary.query_seconds,
        )
        self._primary = primary
        self._lock = asyncio.Lock()
        self._away_until = 0.0
        self._reason: str | None = None  # why it is not used now
        self._is_checked = False  # once it was found right, or a caller was told why it is not
        self._primary_is: _Identity | None = None
        self._was_standby = False  # when a connection was opened last
        self._lag: float | None = None
        self._lag_until = 0.0
        self._is_late = False
        self._closed_with: Pool | None = None  # the pool of the primary when this one closed

    async def open(self) -> None:
        """Make the pool of connections, none of which is waited for longer than a list may wait."""
        if self._pool is not None:
            return
        await super().open()
        parameters = self._target.parameters
        seconds = min(parameters.connect_seconds, _ANSWER_SECONDS)
        parameters = msgspec.structs.replace(parameters, connect_seconds=seconds)
        self._target = replace(self._target, parameters=parameters)

    async def close(self) -> None:
        """Close every connection. No call opens another until the primary is opened again."""
        self._closed_with = self._primary._pool
        await super().close()

    async def check(self) -> ReadCheck:
        """Look at the replica; see `ReadStore.check_reads`."""
        address = redact(read_url(self.url).url)
        try:
            identity = await self._asked(_identity)
            lag = await self._measure()
        except _Unusable as error:
            return ReadCheck(address, trouble=str(error))
        finally:
            self._is_checked = True
        return ReadCheck(address, is_standby=identity.is_standby, lag_seconds=lag)

    async def caught_up(self) -> Database | None:
        """Return a database with all that is committed now, once the replica has it.

        Return None if that takes long, or if the replica is the primary itself. The connections
        may lead to several replicas, or soon to a promoted one: each call looks where it is made.
        """
        written, _ = await self._written()
        try:
            async with asyncio.timeout(_CATCH_UP_SECONDS):
                ask = _HAS_REPLAYED, written
                while not (has_all := await self._asked(lambda c: c.fetchval(*ask))):
                    if has_all is None:
                        return None
                    await asyncio.sleep(_LOOK_SECONDS)
        except (TimeoutError, _Unusable, ConfigurationError, asyncpg.PostgresError):
            return None
        return _CaughtUp(self, written)

    async def _call(self, call: Callable[[Connection], Awaitable[T]]) -> T:
        """Make a call on the replica, or else on the primary."""
        return await self.call_either(call, call)

    async def call_either(
        self,
        on_replica: Callable[[Connection], Awaitable[T]],
        on_primary: Callable[[Connection], Awaitable[T]],
    ) -> T:
        """Make a call on the replica, or else one on the primary."""
        notes = read_from.get()
        try:
            answer = await self._asked(on_replica)
        except ConfigurationError as error:
            if not self._is_checked:
                raise
            self._leave(str(error))
        except (_Unusable, _Behind):
            pass
        else:
            lag = await self._measured()
            if notes is not None:
                notes.source, notes.lag_seconds = "replica", lag
            return answer
        if notes is not None:
            notes.source, notes.lag_seconds = "database", None
        return await self._primary._call(on_primary)

    async def _asked(self, call: Callable[[Connection], Awaitable[T]]) -> T:
        """Make a call on the replica. Raises _Unusable, ConfigurationError, and errors of calls."""
        # It refuses calls after its end, and this one ends first.
        if self._primary._open_pool() is self._closed_with:
            raise _Unusable("it is closed")
        await self.open()
        now = asyncio.get_running_loop().time()
        if now < self._away_until:
            raise _Unusable(self._reason)
        if self._reason is not None:  # this call tries it again, and others do not wait for that
            self._away_until = now + _AWAY_SECONDS
        try:
            answer = await super()._call(call)
        except _Unusable as error:
            self._leave(str(error))
            raise
        except asyncpg.PostgresError as error:
            self._judge(error)
        except (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
            if isinstance(error, (TimeoutError, ValueError)):
                raise
            self._leave(str(error) or type(error).__name__)
            raise _Unusable(str(error)) from error
        if self._reason is not None:
            logger.warning("lists are read from %s again", redact(self._target.url))
            self._reason, self._away_until = None, 0.0
        return answer

    def _judge(self, error: asyncpg.PostgresError) -> NoReturn:
        """Raise _Unusable for an error that the primary would not have."""
        if (error.sqlstate or "").startswith("40"):  # replay of the primary's changes was first
            raise _Unusable(str(error)) from error
        if issubclass(error_class(error), (DatabaseUnavailable, SchemaMissing)):
            self._leave(str(error))
            raise _Unusable(str(error)) from error
        raise error

    def _leave(self, reason: str) -> None:
        """Do not use the replica for some seconds; say so once."""
        self._away_until = asyncio.get_running_loop().time() + _AWAY_SECONDS
        if self._reason is None:
            place = redact(self._target.url)
            logger.warning("lists are read from the database, not from %s: %s", place, reason)
        self._reason = reason

    async def _connect(self, *, limited: bool = True) -> Connection:
        """Open a connection, and see that it leads to a replica with the schema of the primary."""
        try:
            connection = await super()._connect(limited=limited)
        except (*LOST, ValueError) as error:
            reason = str(connect_error(error, self._target))
            reason = reason.removeprefix(f"{redact(self._target.url)}: ")  # said beside it
            raise _Unusable(reason) from error
        try:
            await self._refuse_other(connection)
        except BaseException as error:
            connection.terminate()
            if isinstance(error, LOST):
                raise _Unusable(str(error)) from error
            raise
        return connection

    async def _refuse_other(self, connection: Connection) -> None:
        found = await _identity(connection)
        try:
            primary = self._primary_is = await self._ask_primary(_identity)
        except LOST:
            if self._primary_is is not None and found.is_standby:
                self._refuse_if_other(found, self._primary_is)
                return  # lists can be read while the primary is away
            raise
        self._refuse_if_other(found, primary)
        try:
            state = await read_state(connection, self.schema)
            wanted = await self._ask_primary(lambda c: read_state(c, self.schema))
        except DatabaseError as error:
            raise _Unusable(str(error)) from error
        if (state.versions, state.checksum) != (wanted.versions, wanted.checksum):
            raise _Unusable("it has not replayed the migration of the schema yet")

    def _refuse_if_other(self, found: _Identity, primary: _Identity) -> None:
        is_it = (found.system, found.database) == (primary.system, primary.database)
        if not is_it or not (found.is_standby or found.started_at == primary.started_at):
            what = "it is not a standby" if is_it else "it is not a copy of it"
            if found.system == primary.system and not is_it:
                what = "it is another database of the same server"
            raise ConfigurationError(
                f"the read database {redact(self._target.url)} is not a streaming replica of "
                f"{redact(read_url(self._primary.url).url)}: {what}. Correct --read-database or "
                "$HOLDFAST_READ_DATABASE_URL"
            )
        self._is_checked, self._was_standby = True, found.is_standby

    async def _measured(self) -> float | None:
        """Return how many seconds the replica is behind, as measured a moment ago."""
        async with self._lock:
            if self._pool is None:  # closed after the call was made
                return None
            loop = asyncio.get_running_loop()
            if loop.time() >= self._lag_until:
                try:
                    self._lag = await self._measure()
                except (_Unusable, ConfigurationError):
                    self._lag = None
                self._lag_until = loop.time() + _LAG_SECONDS
            return self._lag

    async def _measure(self) -> float | None:
        """Return how many seconds the replica is behind; None if it does not say."""
        loop = asyncio.get_running_loop()
        began, (written, now) = loop.time(), await self._written()
        try:
            is_standby, lag = await self._look(written, now)
            if lag and written is not None:  # or it is on its way, and the last commit was long ago
                await asyncio.sleep(_LOOK_SECONDS)
                is_standby, lag = await self._look(written, now)
                lag = loop.time() - began if lag == 0 else lag
        except (TimeoutError, asyncpg.PostgresError):  # hosted servers may lack these functions
            return None
        if self._was_standby and not is_standby:  # promoted under our connections
            self._open_pool().drop_idle()
            return None
        is_late = lag is not None and lag >= _LATE_SECONDS
        if is_late and not self._is_late:
            logger.warning("%s is %.0f s behind the database", redact(self._target.url), lag)
        self._is_late = is_late
        return lag

    async def _look(self, written: str | None, now: Any) -> tuple[bool, float | None]:
        """Return if the replica is a standby, and for how long it has not what was written."""
        row = await self._asked(lambda c: c.fetchrow(_LAG, written, now))
        assert row is not None, "a query without FROM has one row"
        return row[0], row[1]

    async def _ask_primary(self, ask: Callable[[Connection], Awaitable[T]]) -> T:
        async with asyncio.timeout(_ANSWER_SECONDS):
            return await self._primary._call(ask)

    async def _written(self) -> tuple[str | None, Any]:
        """Return up to where the primary has written, and its time; None if it does not answer."""
        try:
            with translated():
                row = await self._ask_primary(lambda c: c.fetchrow(_WRITTEN))
        except DatabaseError:
            return None, None
        assert row is not None, "a query without FROM has one row"
        return row[0], row[1]


class _CaughtUp(Database):
    """Calls a replica where it has all that was committed at a moment, else the primary."""

    def __init__(self, following: FollowingDatabase, written: str | None) -> None:
        super().__init__(
            following.url,
            schema=following.schema,
            connections=following.connections,
            prepare=None,
            query_seconds=following.query_seconds,
        )
        self._following, self._written = following, written

    async def _call(self, call: Callable[[Connection], Awaitable[T]]) -> T:
        async def checked(connection: Connection) -> T:
            async with connection.transaction():  # a pooler keeps to one server within it
                if not await connection.fetchval(_HAS_REPLAYED, self._written):
                    raise _Behind
                return await call(connection)

        return await self._following.call_either(checked, call)


async def _identity(connection: Connection) -> _Identity:
    row = await connection.fetchrow(_IDENTITY)
    assert row is not None, "there is always a current database"
    return _Identity(*row)
