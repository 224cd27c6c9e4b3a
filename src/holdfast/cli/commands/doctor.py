"""`holdfast doctor`: is everything there that runs need?"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import click

from holdfast.cli import exits
from holdfast.cli.framework import command
from holdfast.cli.hints import spelled
from holdfast.cli.settings import Settings, settings_of

if TYPE_CHECKING:
    from holdfast.database.resolve import Database
    from holdfast.insight.doctor import Finding


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
        write_json([_object(finding) for finding in findings])
    else:
        _write(findings)
    failed = any(finding.level == "fail" for finding in findings)
    context.exit(exits.FAILED if failed else exits.OK)


async def _examine(database: Database, settings: Settings) -> Sequence[Finding]:
    from holdfast.database.connection import connect
    from holdfast.insight.doctor import examine
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
        if remedy := _remedy(finding):
            output.print(Text(f"{'':<18}→ {spelled(remedy)}", "bold"), soft_wrap=True)


def _object(finding: Finding) -> dict[str, str]:
    return {
        "check": finding.check,
        "level": finding.level,
        "message": finding.message,
        "remedy": _remedy(finding),
    }


def _remedy(finding: Finding) -> str:
    """Return what to do about a finding: a command, a sentence, or both."""
    from holdfast.cli.render.actions import command_of

    command = "" if finding.action is None else command_of(finding.action)
    return ", ".join(part for part in (command, finding.remedy) if part)
