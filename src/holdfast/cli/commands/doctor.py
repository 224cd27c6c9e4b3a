"""`holdfast doctor`: is everything there that runs need?"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from holdfast.cli import exits
from holdfast.cli.framework import command
from holdfast.cli.hints import spelled
from holdfast.cli.settings import Settings, settings_of

if TYPE_CHECKING:
    from holdfast.cli.checks import Finding
    from holdfast.database.resolve import Database


@command("doctor", examples=("holdfast doctor", "holdfast doctor --json | jq '.[].level'"))
@click.pass_context
def doctor(context: click.Context) -> None:
    """Check the database, the workers, and what nobody serves.

    Each line is a check, with the way out where something is amiss.

    Exit code 1 where a check failed, 3 where the database cannot be reached at all.
    """
    from holdfast.cli.connecting import find_database
    from holdfast.cli.console import write_json

    settings = settings_of(context)
    with find_database(settings, make=False) as database:
        if not settings.json:
            click.echo(str(database))
        findings = asyncio.run(_examine(database, settings))
    if settings.json:
        write_json([asdict(finding) for finding in findings])
    else:
        _write(findings)
    failed = any(finding.level == "fail" for finding in findings)
    context.exit(exits.FAILED if failed else exits.OK)


async def _examine(database: Database, settings: Settings) -> Sequence[Finding]:
    from holdfast.cli.checks import examine
    from holdfast.database.connection import connect
    from holdfast.store.opening import opened_store
    from holdfast.store.port import Store

    async with AsyncExitStack() as stack:
        connection = await connect(database.url)
        stack.push_async_callback(connection.close)

        async def open_store() -> Store:
            opened = opened_store(database, settings.schema, connections=1)
            return await stack.enter_async_context(opened)

        return await examine(connection, open_store, settings.schema)


def _write(findings: Sequence[Finding]) -> None:
    from rich.text import Text

    from holdfast.cli.console import console

    styles = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    output = console()
    for finding in findings:
        line = Text(f"{finding.level:<5}", styles[finding.level])
        line.append(f"{finding.check:<13}", "dim").append(finding.message, "default")
        output.print(line, soft_wrap=True)
        if finding.remedy:
            output.print(Text(f"{'':<18}→ {spelled(finding.remedy)}", "bold"), soft_wrap=True)
