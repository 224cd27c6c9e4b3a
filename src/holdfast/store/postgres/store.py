"""The store on PostgreSQL: all its parts over one database."""

from __future__ import annotations

from holdfast.database.schema import check_alone, check_schema
from holdfast.database.scripts import DEFAULT_SCHEMA
from holdfast.store.postgres.activities import PostgresActivities
from holdfast.store.postgres.alerts import PostgresAlerts
from holdfast.store.postgres.approvals import PostgresApprovals
from holdfast.store.postgres.apps import PostgresApps
from holdfast.store.postgres.archives import PostgresArchives
from holdfast.store.postgres.attributes import PostgresAttributes
from holdfast.store.postgres.builds import PostgresBuilds
from holdfast.store.postgres.claims import PostgresClaims
from holdfast.store.postgres.commits import PostgresCommits
from holdfast.store.postgres.control import PostgresControl
from holdfast.store.postgres.database import QUERY_SECONDS, Database
from holdfast.store.postgres.deliveries import PostgresDeliveries
from holdfast.store.postgres.external import PostgresExternal
from holdfast.store.postgres.flows import PostgresFlows
from holdfast.store.postgres.following import FollowingDatabase
from holdfast.store.postgres.forks import PostgresForks
from holdfast.store.postgres.large_payloads import PostgresLargePayloads
from holdfast.store.postgres.limits import PostgresLimits
from holdfast.store.postgres.listening import PostgresListening
from holdfast.store.postgres.messages import PostgresMessages
from holdfast.store.postgres.queries import PostgresQueries
from holdfast.store.postgres.retention import PostgresRetention
from holdfast.store.postgres.schedules import PostgresSchedules
from holdfast.store.postgres.shards import PostgresShards
from holdfast.store.postgres.start_rules import PostgresStartRules
from holdfast.store.postgres.starts import PostgresStarts
from holdfast.store.postgres.stats import PostgresStats
from holdfast.store.postgres.streams import PostgresStreams
from holdfast.store.postgres.topics import PostgresTopics
from holdfast.store.postgres.traces import PostgresTraces
from holdfast.store.postgres.transactions import PostgresTransactions
from holdfast.store.postgres.webhooks import PostgresWebhooks
from holdfast.store.postgres.workers import PostgresWorkers
from holdfast.types import ReadCheck
from holdfast.values.waits import to_the_end


class PostgresParts(
    PostgresStarts,
    PostgresStartRules,
    PostgresClaims,
    PostgresCommits,
    PostgresActivities,
    PostgresExternal,
    PostgresApprovals,
    PostgresWebhooks,
    PostgresAttributes,
    PostgresControl,
    PostgresLimits,
    PostgresForks,
    PostgresFlows,
    PostgresSchedules,
    PostgresTopics,
    PostgresAlerts,
    PostgresBuilds,
    PostgresMessages,
    PostgresDeliveries,
    PostgresWorkers,
    PostgresStreams,
    PostgresStats,
    PostgresShards,
    PostgresTraces,
    PostgresTransactions,
    PostgresApps,
    PostgresQueries,
    PostgresRetention,
    PostgresArchives,
    PostgresLargePayloads,
    PostgresListening,
):
    """All parts of a store, over one database."""

    @property
    def schema(self) -> str:
        """The schema of the database."""
        return self._database.schema

    async def open(self) -> None:
        """Connect; see `Store.open`.

        Raises:
            DatabaseUnavailable, InsufficientRights, InvalidDatabaseURL, ServerTooOld: the
                database cannot be used.
            SchemaMissing, SchemaOutdated, SchemaTooNew: the schema is not this release's.
        """
        await self._database.open()

    async def close(self) -> None:
        """Close every connection."""
        await self._listeners.close()
        await self._database.close()

    async def now(self) -> int:
        """Return engine time."""
        return int(await self._database.value("now_micros"))

    @property
    def reads(self) -> PostgresParts:
        return self

    async def fresh_reads(self) -> PostgresParts:
        return self

    async def check_reads(self) -> ReadCheck | None:
        """Return None: there is no other database; see `ReadStore.check_reads`."""
        return None


class PostgresStore(PostgresParts):
    """A `Store` in a schema of a PostgreSQL database, 14 or newer.

    Up to `connections` connections serve calls; one more opens for the first listener. `prepare`
    decides whether statements are prepared by name; None: if no pooler is in between. Listening
    needs a direct connection or a pooler in session mode: give its address as `listen_url`. With
    `tells`, starts, signals, commits and ends of activities send their notices themselves if they
    can, and return the others. `open` refuses a schema that this release cannot work with, unless
    `check` is False. A query may take `query_seconds`. `reads` is on the replica at `read_url`.
    With `alone`, `open` refuses a database that is a shard of several.

    It belongs to one event loop.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str = DEFAULT_SCHEMA,
        connections: int = 4,
        prepare: bool | None = None,
        check: bool = True,
        listen_url: str | None = None,
        read_url: str | None = None,
        tells: bool = False,
        query_seconds: float = QUERY_SECONDS,
        alone: bool = False,
    ) -> None:
        database = Database(
            url,
            schema=schema,
            connections=connections,
            prepare=prepare,
            checks=[check_schema] * check + [check_alone] * alone,
            listen_url=listen_url,
            tells=tells,
            query_seconds=query_seconds,
        )
        super().__init__(database)
        self._following: FollowingDatabase | None = None
        self._reads: PostgresParts = self
        if read_url is not None:
            self._following = FollowingDatabase(database, read_url, prepare)
            self._reads = PostgresParts(self._following)

    async def close(self) -> None:
        """Close every connection."""
        await to_the_end(self._close())

    async def _close(self) -> None:
        if self._following is not None:
            await self._following.close()
        await super().close()

    @property
    def reads(self) -> PostgresParts:
        return self._reads

    async def fresh_reads(self) -> PostgresParts:
        found = None if self._following is None else await self._following.caught_up()
        return self if found is None else PostgresParts(found)

    async def check_reads(self) -> ReadCheck | None:
        return None if self._following is None else await self._following.check()
