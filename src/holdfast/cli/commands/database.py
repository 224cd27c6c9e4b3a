"""`holdfast migrate` and `holdfast doctor`: prepare the database, and check it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from holdfast.cli.answers import Answer, current_settings
from holdfast.cli.framework import command, option
from holdfast.cli.render.console import console, write_json
from holdfast.cli.render.hints import command_of, with_database
from holdfast.cli.settings import Settings

if TYPE_CHECKING:
    from holdfast.database.migrate import MigrationReport
    from holdfast.database.resolve import Database
    from holdfast.insight.findings import Finding


_CHANGES = ("schema", "migrations", "functions")
_MOST_NAMED = 5  # migrations; --json names all


@command(
    "migrate",
    examples=(
        "holdfast migrate --database postgresql://shop@db/shop",
        "holdfast migrate --dry-run",
        "holdfast migrate --sql > holdfast.sql     for psql --file holdfast.sql",
        "holdfast migrate --results postgresql://app@db/shop     the data of transactions",
    ),
)
@option("--dry-run", "Show what would be done, and change nothing.")
@option(
    "--grant ROLE...",
    "Give this role the rights that workers and clients need; may be repeated.",
    name="roles",
)
@option("--sql", "Write the whole schema as an SQL script, and do nothing else.")
@option(
    "--results URL",
    "Make the table of results in another database, for the data of transactions.",
    name="data",
)
def migrate(dry_run: bool, roles: tuple[str, ...], sql: bool, data: str | None) -> None:
    """Bring the schema of the database up to date, of several one by one.

    Roles that could use the schema before can also use the new parts. Everything happens in one
    transaction, and several processes may run this command at the same time. With --sql no
    database is needed. With --results only the table of results is made, in that database.
    """
    from holdfast.cli.connecting import find_database
    from holdfast.database.migrate import render

    settings = current_settings()
    if data is not None:
        _make_results(data, settings.schema, roles, only_shown=sql or dry_run)
        return
    if sql:
        click.echo(render(settings.schema), nl=False)
        return
    with find_database(settings) as database:
        _migrate_each(database, settings, roles, dry_run=dry_run)


def _migrate_each(
    database: Database, settings: Settings, roles: tuple[str, ...], *, dry_run: bool
) -> None:
    """Migrate one database after another, none if one of several cannot be migrated at all."""
    import asyncio

    from holdfast.errors import HoldfastError

    told: list[dict[str, object]] = []
    parts = database.parts
    for each in parts if database.shards and not dry_run else ():
        asyncio.run(_migrate(each.url, settings.schema, (), dry_run=True))
    try:
        for each in parts:
            outcome = asyncio.run(_migrate(each.url, settings.schema, roles, dry_run=dry_run))
            if not settings.json:
                _say(f"{each}, schema {settings.schema!r}", outcome, roles, dry_run)
            changes = {name: getattr(outcome, name) for name in _CHANGES}
            told.append({"applied": not dry_run, **changes, "granted_to": list(roles)})
    except HoldfastError:
        if told and not dry_run:
            left = " and ".join(str(each) for each in parts[len(told) :])
            click.echo(f"left as they were: {left}; run the command again for them", err=True)
        raise
    finally:
        if settings.json and told:
            write_json(told if database.shards else told[0])


def _say(what: str, outcome: MigrationReport, roles: tuple[str, ...], dry_run: bool) -> None:
    click.echo(f"{what}: {_describe(outcome, dry_run)}")
    if roles:
        verb = "would get" if dry_run else "has" if len(roles) == 1 else "have"
        click.echo(f"{', '.join(roles)} {verb} the rights that workers and clients need")


def _make_results(url: str, schema: str, roles: tuple[str, ...], *, only_shown: bool) -> None:
    """Make the table of results of transactions, or show the script."""
    import asyncio

    from holdfast.database.connection import connected
    from holdfast.database.migrate import render_results
    from holdfast.database.urls import redact

    text = render_results(schema, roles)
    if only_shown:
        click.echo(text, nl=False)
        return

    async def apply() -> None:
        async with connected(url) as connection, connection.transaction():
            await connection.execute(text)

    asyncio.run(apply())
    table = f"{schema}.step_results"
    told = {"applied": True, "table": table, "granted_to": list(roles)}
    Answer(told, f"{redact(url)} has the table {table}").write()


async def _migrate(
    url: str, schema: str, roles: tuple[str, ...], *, dry_run: bool
) -> MigrationReport:
    from holdfast.database.connection import connected
    from holdfast.database.migrate import migrate, plan

    async with connected(url) as connection:
        if dry_run:
            return await plan(connection, schema)
        return await migrate(connection, schema, grant_to=roles)


def _describe(outcome: MigrationReport, dry_run: bool) -> str:
    if outcome.is_empty:
        return "up to date"
    names = outcome.migrations
    if len(names) > _MOST_NAMED:
        parts = [f"{len(names)} migrations, {names[0]} to {names[-1]}"]
    else:
        parts = [f"migration {name}" for name in names]
    parts += ["the functions"] if outcome.functions else []
    return f"{'would apply' if dry_run else 'applied'} {', '.join(parts)}"


@command("doctor", examples=("holdfast doctor", "holdfast doctor --json | jq '.[].level'"))
def doctor() -> None:
    """Check the database, the workers, and tasks that no live worker serves.

    Each line is one check. If something is wrong, the next line says what to do. Exit code
    1 if a check failed, 3 if the database cannot be reached. Several databases are checked one by
    one, and one that is away is a check that failed.
    """
    import asyncio

    from holdfast.cli.connecting import find_database

    settings = current_settings()
    with find_database(settings, make=False) as database:
        if not settings.json:
            click.echo(str(database))
        findings = asyncio.run(_examine(database, settings))
    passed = all(finding.level != "fail" for finding in findings)
    objects = [_object(finding) for finding in findings]
    Answer(objects, lambda: _write(findings), ok=passed).write()


async def _examine(database: Database, settings: Settings) -> Sequence[Finding]:
    from holdfast.insight.shards import examine_database, examine_shards

    if database.shards:
        return await examine_shards(database, settings.schema)
    return await examine_database(database, settings.schema)


def _write(findings: Sequence[Finding]) -> None:
    from rich.text import Text

    styles = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    output = console()
    width = max((len(each.check) for each in findings), default=0) + 1
    for finding in findings:
        line = Text(f"{finding.level:<5}", styles[finding.level])
        line.append(f"{finding.check:<{width}}", "dim").append(finding.message, "default")
        output.print(line, soft_wrap=True)
        if remedy := _remedy(finding):
            output.print(
                Text(f"{'':<{width + 5}}→ {with_database(remedy)}", "bold"), soft_wrap=True
            )


def _object(finding: Finding) -> dict[str, str]:
    return {
        "check": finding.check,
        "level": finding.level,
        "message": finding.message,
        "remedy": _remedy(finding),
    }


def _remedy(finding: Finding) -> str:
    """Return what to do about a finding: a command, a sentence, or both."""
    command = "" if finding.action is None else command_of(finding.action)
    return ", ".join(part for part in (command, finding.remedy) if part)
