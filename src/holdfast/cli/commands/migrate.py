"""`holdfast migrate`: bring the database's schema up to date."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from holdfast.cli.framework import command
from holdfast.cli.settings import settings_of

if TYPE_CHECKING:
    from holdfast.database.migrate import MigrationReport


@command(
    "migrate",
    examples=(
        "holdfast migrate --database postgresql://shop@db/shop",
        "holdfast migrate --dry-run",
        "holdfast migrate --sql > holdfast.sql     for psql --file holdfast.sql",
    ),
)
@click.option("--dry-run", is_flag=True, help="Say what would be done, and change nothing.")
@click.option(
    "--grant",
    "roles",
    metavar="ROLE",
    multiple=True,
    help="Let this role work with the schema; may be repeated.",
)
@click.option("--sql", is_flag=True, help="Write the whole schema as a script for psql.")
@click.pass_context
def migrate(context: click.Context, dry_run: bool, roles: tuple[str, ...], sql: bool) -> None:
    """Bring the database's schema up to date.

    Roles that could work with the schema can work with what is new in it. All of it is one
    transaction; any number of processes may run it at once. With --sql no
    database is needed.
    """
    from holdfast.cli.connecting import find_database
    from holdfast.cli.console import write_json
    from holdfast.database.migrate import render

    settings = settings_of(context)
    if sql:
        click.echo(render(settings.schema), nl=False)
        return
    with find_database(settings) as database:
        outcome = asyncio.run(_migrate(database.url, settings.schema, roles, dry_run=dry_run))
        if settings.json:
            fields = ("schema", "migrations", "functions")
            changes = {name: getattr(outcome, name) for name in fields}
            write_json({"applied": not dry_run, **changes, "granted_to": list(roles)})
        else:
            click.echo(f"{database}, schema {settings.schema!r}: {_describe(outcome, dry_run)}")
            if roles:
                verb = "would get" if dry_run else "has" if len(roles) == 1 else "have"
                click.echo(f"{', '.join(roles)} {verb} what workers and clients need of it")


async def _migrate(
    url: str, schema: str, roles: tuple[str, ...], *, dry_run: bool
) -> MigrationReport:
    from holdfast.database.connection import connect
    from holdfast.database.migrate import migrate, plan

    connection = await connect(url)
    try:
        if dry_run:
            return await plan(connection, schema)
        return await migrate(connection, schema, grant_to=roles)
    finally:
        await connection.close()


def _describe(outcome: MigrationReport, dry_run: bool) -> str:
    if outcome.is_empty:
        return "up to date"
    parts = [f"migration {name}" for name in outcome.migrations]
    parts += ["the functions"] if outcome.functions else []
    return f"{'would apply' if dry_run else 'applied'} {', '.join(parts)}"
