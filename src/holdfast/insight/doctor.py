"""Check a database and who works with it: each check asks one question and returns a finding."""

from __future__ import annotations

import asyncio
from uuid import uuid4

from holdfast.database.grants import lacking
from holdfast.database.schema import Connection
from holdfast.database.schema import check_schema as refuse_schema
from holdfast.database.scripts import load_scripts
from holdfast.errors import ConfigurationError, DatabaseError, SchemaMissing, SchemaOutdated
from holdfast.insight.actions import Action, resume_action
from holdfast.insight.findings import Finding
from holdfast.insight.serving import live_workers
from holdfast.insight.wording import behind, length, several
from holdfast.store.port import Store
from holdfast.types import Notice
from holdfast.values.names import split_handler
from holdfast.values.waits import set_within

_LAG_WARN_SECONDS = 30.0
_NAMED = 3  # workers
_MOST_NAMED = 10  # tables, sequences and functions
_DEAD_ROWS = 50_000
_UNUSED_SLOT_BYTES = 1 << 30
_NOTIFICATION_SECONDS = 3.0

_GONE = """
select signature from "{schema}".schema_functions
where to_regprocedure(signature) is null order by signature
"""
_INVALID = """
select format('%I.%I', n.nspname, c.relname)
from pg_index i
join pg_class c on c.oid = i.indexrelid
join pg_namespace n on n.oid = c.relnamespace
where n.nspname = $1 and not i.indisvalid order by 1
"""
# Nobody reads from it now: it keeps what its reader has yet to get.
_UNUSED_SLOT = """
select slot_name, kept
from pg_replication_slots
cross join lateral (select pg_wal_lsn_diff(
    case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end,
    restart_lsn)::int8 as kept) as k
where not active and (kept >= $1 or xmin is not null)
order by kept desc nulls last
limit 1
"""
_DEAD_TASKS = """
select coalesce(n_dead_tup, 0) from pg_stat_user_tables where schemaname = $1 and relname = 'tasks'
"""

# Whose rows the role neither sees nor may write.
_HIDDEN = """
select c.relname::text from pg_class c
where c.relnamespace = $1::regnamespace and c.relname = any ($2::text[])
    and case c.relkind when 'r' then row_security_active(c.oid) end
    and not exists (select from pg_policy p where p.polrelid = c.oid)
order by 1
"""

# What is held by a worker is being tried again.
_STUCK = """
select kind, count(*) as tasks, (array_agg(run_id order by run_id))[1] as run_id
from "{schema}".tasks
where stuck is not null and worker is null and not paused
    and kind in ('workflow', 'activity', 'step')
group by kind
order by kind <> 'workflow', kind
"""
_STUCK_NOUNS = {
    "workflow": ("run is stuck", "runs are stuck"),
    "activity": ("activity cannot be begun", "activities cannot be begun"),
    "step": ("step of a flow cannot be begun", "steps of flows cannot be begun"),
}


async def check_schema(connection: Connection, schema: str) -> Finding:
    """Check that the schema is the one of this release."""
    try:
        await refuse_schema(connection, schema)
    except (SchemaMissing, SchemaOutdated) as error:
        return Finding("schema", "fail", str(error), action=Action("migrate", schema=schema))
    except DatabaseError as error:  # its message says what to do
        return Finding("schema", "fail", str(error))
    if gone := [row[0] for row in await connection.fetch(_GONE.format(schema=schema))]:
        what = f"{schema!r} lacks {several(len(gone), 'function')} that it had, such as {gone[0]}"
        again = f"update {schema}.schema_functions set checksum = '', then `holdfast migrate`"
        return Finding("schema", "fail", what, again)
    if invalid := [row[0] for row in await connection.fetch(_INVALID, schema)]:
        what = f"no query uses index {invalid[0]}, which is not valid: whole tables may be read"
        again = f"reindex index concurrently {invalid[0]}; drop it if its name ends in _ccnew"
        return Finding("schema", "warn", what, again)
    return Finding("schema", "ok", f"{schema!r} is up to date")


async def check_rights(connection: Connection, schema: str) -> Finding:
    """Check that the role may use everything that the engine uses."""
    without = await lacking(connection, schema)
    role = await connection.fetchval("select current_user")
    names = list(load_scripts().names)
    rows = [] if without else await connection.fetch(_HIDDEN, schema, names)
    if hidden := [row[0] for row in rows]:
        return Finding(
            "rights",
            "fail",
            f"row-level security keeps role {role!r} from the rows of {', '.join(hidden)}",
            f"alter table {schema}.{hidden[0]} disable row level security",
        )
    if not without:
        return Finding("rights", "ok", f"role {role!r} may use all of schema {schema!r}")
    return Finding(
        "rights",
        "fail",
        f"role {role!r} may not use all of schema {schema!r}: {', '.join(without[:_MOST_NAMED])}"
        + (f" and {len(without) - _MOST_NAMED} more" if without[_MOST_NAMED:] else ""),
        "as the schema's owner",
        Action("migrate", name=str(role), schema=schema),
    )


async def check_workers(store: Store) -> Finding:
    """Check that a worker is alive, and that no worker has died."""
    now, workers = await store.now(), await store.list_workers()
    live = live_workers(workers, now)
    silent = [each for each in workers if each not in live]
    if silent:
        oldest = min(silent, key=lambda each: each.heard_at)
        since = now - oldest.heard_at
        how = f"silent for {length(since)}" if since >= 0 else "silent since the clock was set back"
        return Finding(
            "workers",
            "warn",
            f"{several(len(live), 'live worker')}; {oldest.worker_id} has been {how}",
            "any live worker takes its runs over within seconds",
            None if live else Action("start_worker"),
        )
    if not live:
        return Finding("workers", "warn", "none is signed on", action=Action("start_worker"))
    return Finding("workers", "ok", several(len(live), "live worker"))


async def check_unserved(store: Store) -> Finding:
    """Check that each task that is due has a live worker that serves it."""
    unserved = await store.unserved()
    if not unserved:
        return Finding("handlers", "ok", "every task that is due has a worker that serves it")
    parts = [_unserved(*each, is_flow=await _is_flow(store, each[1])) for each in unserved]
    queue = unserved[0][0]
    return Finding(
        "handlers",
        "warn",
        f"no live worker serves {', '.join(parts)}",
        action=Action("start_worker", name=queue),
    )


async def _is_flow(store: Store, handler: str) -> bool:
    name, _, version = handler.rpartition("@")
    return version.isdigit() and await store.get_flow(name, int(version)) is not None


def _unserved(queue: str, handler: str, tasks: int, *, is_flow: bool) -> str:
    """Return what waits: `activity shop/mail on queue 'mail' (2 tasks)`."""
    name, version, _ = split_handler(handler)
    what, noun, unseen = handler, "run", ""
    if version == 0:
        what, noun = f"activity {name}", "task"
    elif is_flow:
        what, noun = f"the steps of flow {handler}", "task"
        if "/" not in name:  # made from SQL
            unseen = "; workers that speak SQL only are not signed on"
    return f"{what} on queue {queue!r} ({several(tasks, noun)}{unseen})"


async def check_apps(store: Store) -> Finding:
    """List the apps that have had a worker here, and the workflows that several of them have."""
    apps = await store.list_apps()
    if not apps:
        return Finding("apps", "ok", "none has had a worker here yet")
    having: dict[str, list[str]] = {}
    for each in apps:
        for workflow in each.workflows:
            having.setdefault(workflow, []).append(each.app)
    shared = [
        f"{workflow} (in {' and '.join(names)})"
        for workflow, names in sorted(having.items())
        if len(names) > 1
    ]
    message = ", ".join(
        f"{each.app} from {each.origin}" if each.origin else each.app for each in apps
    )
    if shared:
        message += f"; to be called with their apps, as app/name: {', '.join(shared)}"
    return Finding("apps", "ok", message)


async def check_pauses(store: Store) -> Finding:
    """List what is paused, and since when: a pause may have been forgotten."""
    pauses, now = await store.list_pauses(), await store.now()
    if not pauses:
        return Finding("pauses", "ok", "no queue and no workflow is paused")
    parts = [
        f"{each.scope} {each.name!r} since {length(now - each.paused_at)}"
        + (f" ({each.reason})" if each.reason else "")
        for each in pauses
    ]
    return Finding(
        "pauses",
        "warn",
        f"workers begin nothing of {', '.join(parts)}",
        action=resume_action(pauses[0]),
    )


async def check_stuck(connection: Connection, schema: str) -> Finding:
    """Count what cannot continue with the code that the workers have: runs, and their calls."""
    rows = await connection.fetch(_STUCK.format(schema=schema))
    if not rows:
        return Finding("stuck", "ok", "nothing is held up by changed code")
    parts = [f"{row['tasks']:,} {_STUCK_NOUNS[row['kind']][row['tasks'] > 1]}" for row in rows]
    return Finding(
        "stuck",
        "warn",
        ", ".join(parts),
        "then correct the code or roll it back",
        Action("why", rows[0]["run_id"]),
    )


async def check_slots(connection: Connection) -> Finding:
    """Look for a replication slot without a reader, for which the server keeps its log."""
    row = await connection.fetchrow(_UNUSED_SLOT, _UNUSED_SLOT_BYTES)
    if row is None:
        return Finding("slots", "ok", "no unused replication slot keeps much of the server's log")
    name, kept = row["slot_name"], (row["kept"] or 0) >> 20
    return Finding(
        "slots",
        "warn",
        f"nobody reads from replication slot {name!r}: for it the server keeps {kept:,} MB of its "
        "log (WAL) until the disk is full, and perhaps dead rows",
        f"start its reader again, or: select pg_drop_replication_slot('{name}')",
    )


async def check_dead_rows(connection: Connection, schema: str) -> Finding:
    """Count the dead rows of the table that is claimed from, which vacuum has yet to remove."""
    dead = int(await connection.fetchval(_DEAD_TASKS, schema) or 0)
    if dead < _DEAD_ROWS:
        return Finding("vacuum", "ok", f"{several(dead, 'dead row')} in {schema}.tasks")
    return Finding(
        "vacuum",
        "warn",
        f"{several(dead, 'dead row')} in {schema}.tasks slow claiming down",
        f"see that autovacuum is on, or: vacuum {schema}.tasks",
    )


async def check_notifications(store: Store) -> Finding:
    """Check that a notification arrives: a connection pooler may drop it."""
    heard = asyncio.Event()
    topic = f"doctor/{uuid4().hex}"
    stop = await store.listen(topic, lambda _: heard.set())
    await store.notify([Notice(topic, "")])
    try:
        arrived = await set_within(heard, _NOTIFICATION_SECONDS)
    finally:
        await stop()
    if arrived:
        return Finding("notify", "ok", "notifications arrive")
    return Finding(
        "notify",
        "warn",
        "no notification arrives: work is found by polling, within seconds",
        "behind a pooler in transaction mode give the server's own address with "
        "--listen-database or $HOLDFAST_LISTEN_DATABASE_URL",
    )


async def check_hints(store: Store) -> list[Finding]:
    """Check what carries hints to workers; nothing is said if nobody has it.

    A client may well be without it: its starts are notified.
    """
    found = await store.check_hints()
    live = live_workers(await store.list_workers(), await store.now())
    users = [each for each in live if each.hints is not None]
    if found is not None and found.trouble is not None:
        what = f"{found.address} does not wake workers, PostgreSQL does: {found.trouble}"
        return [Finding("redis", "warn", what, found.way_out or "")]
    if found is None and not users:
        return []
    used = f"Redis is used by {len(users)} of {several(len(live), 'live worker')}"
    what = "this program does not use it" if found is None else f"{found.address} takes hints"
    if away := [each.worker_id for each in users if not each.hints]:
        named = ", ".join(away[:_NAMED]) + (" …" if away[_NAMED:] else "")
        what = f"Redis does not reach {len(away)} of {len(users)} that use it: {named}"
        return [Finding("redis", "warn", what, "PostgreSQL wakes them; their logs say why")]
    if live and not users:
        way_out = (
            "give --redis or $HOLDFAST_REDIS_URL to the workers too: they find runs by polling"
        )
        return [Finding("redis", "warn", f"{what}; {used}", way_out)]
    return [Finding("redis", "ok", f"{what}; {used}" if live else what)]


async def check_reads(store: Store) -> list[Finding]:
    """Check the database that lists are read from; without one, nothing is said."""
    try:
        found = await store.check_reads()
    except ConfigurationError as error:
        return [Finding("reads", "fail", str(error))]
    if found is None:
        return []
    if found.trouble is not None:
        what = f"lists are read from the database, not from {found.address}: {found.trouble}"
        return [Finding("reads", "warn", what, "see that the replica runs and streams")]
    if not found.is_standby:
        return [Finding("reads", "ok", f"{found.address} is the database itself")]
    what = f"lists are read from {found.address}, {behind(found.lag_seconds)}"
    if found.lag_seconds is None or found.lag_seconds < _LAG_WARN_SECONDS:
        return [Finding("reads", "ok", what)]
    return [Finding("reads", "warn", what, "look at pg_stat_replication")]
