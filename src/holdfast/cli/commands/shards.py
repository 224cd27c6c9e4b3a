"""`holdfast shards`: see the databases of an engine, add one, and close one."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import click

from holdfast.cli.answers import Answer, current_settings
from holdfast.cli.exits import USAGE, Refusal
from holdfast.cli.framework import Group, command, sources
from holdfast.cli.render.console import folding, plain, table, whole
from holdfast.cli.render.hints import with_database
from holdfast.insight.wording import several

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from rich.table import Table

    from holdfast.database.resolve import Database
    from holdfast.insight.shards import ShardSummary
    from holdfast.store.port import Store
    from holdfast.types import ShardState

    Change: TypeAlias = Callable[[Sequence[Store]], Awaitable[tuple[ShardState, list[int]]]]


@click.group(
    "shards",
    cls=Group,
    sources=sources(__name__, "list:list_shards", "add", "close", "open:open_again"),
    examples=("holdfast shards list", "holdfast shards add", "holdfast shards close 2"),
)
def shards() -> None:
    """Look at several databases that are one engine, add some, and close some for new runs."""


@command("list", examples=("holdfast shards list", "holdfast shards list --json | jq '.[].state'"))
def list_shards() -> None:
    """List the databases that are named, and what each is.

    A database is open, closed for new runs, away, spare: named, and no shard until `holdfast
    shards add` makes it one, or alone: in use, and not a shard. The line also says how many runs it
    has by status, and how many signals and events wait there until another shard takes them.
    """
    import asyncio

    from holdfast.cli.connecting import find_database
    from holdfast.insight.shards import look_at_shards

    settings = current_settings()
    with find_database(settings, make=False) as database:
        found = asyncio.run(look_at_shards(database, settings.schema))
        Answer([plain(each) for each in found], lambda: _table(found)).write()


@command(
    "add",
    examples=(
        "holdfast shards add --database postgresql://a/shop --database postgresql://b/shop",
        "holdfast shards add     with all databases in $HOLDFAST_DATABASE_URL",
    ),
)
def add() -> None:
    """Make the databases that are named shards of one engine.

    Name all of them, in the order of their numbers: those that are shards already first. New ones
    must be migrated, and have no runs; only the first of a new engine may have some. Give all
    programs the longer list before. What was cut off is completed when it is run again.
    """
    from holdfast.store.shards import add_shards

    _change(add_shards, "Each needs a worker: `holdfast workers` lists them")


@command(
    "close", examples=("holdfast shards close 2     with all databases in $HOLDFAST_DATABASE_URL",)
)
@click.argument("number", type=int)
def close(number: int) -> None:
    """Close a shard for new runs: what it has continues, and its worker is still needed.

    Children, retries, forks and `continue_as_new` stay with their runs. `holdfast shards list`
    says how many runs it has left. Name the databases of all shards. What was cut off is completed
    when it is run again, and `holdfast shards open` takes it back.
    """
    from functools import partial

    from holdfast.store.shards import close_shard

    _change(partial(close_shard, number=number))


@command(
    "open", examples=("holdfast shards open 2     with all databases in $HOLDFAST_DATABASE_URL",)
)
@click.argument("number", type=int)
def open_again(number: int) -> None:
    """Let new runs begin again in a shard that was closed."""
    from functools import partial

    from holdfast.store.shards import close_shard

    _change(partial(close_shard, number=number, reopens=True))


def _change(change: Change, advice: str = "") -> None:
    """Change the shards of the databases that are named, and say what they are now."""
    import asyncio

    from holdfast.cli.connecting import database_of
    from holdfast.database.resolve import Source
    from holdfast.store.shards.homes import open_shards

    settings = current_settings()
    with database_of(settings, make=False) as database:
        if database.source is Source.EMBEDDED:
            raise Refusal(
                "an embedded database is an engine alone: name the databases of servers, each with "
                "--database, or all in $HOLDFAST_DATABASE_URL",
                USAGE,
            )
        state, told = asyncio.run(_changed(database, settings.schema, change))
    closed = sorted(set(range(state.count)) - set(open_shards(state.history)))
    which = f"shard {', '.join(map(str, told))} was told" if told else "all of them knew it"
    but = f", shard {', '.join(map(str, closed))} closed" if closed else ""
    text = f"the engine has {several(state.count, 'shard')}{but}: {which}"
    if told and advice:
        text += f". {advice}"
    answer = {"count": state.count, "closed": closed, "engine": state.engine, "told": told}
    Answer(answer, text).write()


async def _changed(database: Database, schema: str, change: Change) -> tuple[ShardState, list[int]]:
    from contextlib import AsyncExitStack

    from holdfast.database.distinct import refuse_same
    from holdfast.store.opening import opened_store

    await refuse_same([each.url for each in database.parts])
    async with AsyncExitStack() as stack:
        stores = [
            await stack.enter_async_context(opened_store(each, schema, connections=1))
            for each in database.parts
        ]
        return await change(stores)


def _table(found: list[ShardSummary]) -> Table:
    shown = table(whole("shard", "state"), folding("runs", "to send", "database"))
    for each in found:
        runs = ", ".join(f"{count:,} {status}" for status, count in each.runs.items())
        waiting = f"{each.forwards:,}" if each.forwards else ""
        said = each.message or each.database
        if not said.startswith(each.database):
            said = f"{each.database}: {said}"
        shown.add_row(str(each.number), each.state, runs, waiting, with_database(said))
    return shown
