"""`holdfast dev`: run an app while it is being written."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from holdfast.cli.framework import command
from holdfast.cli.inputs import log_level_option
from holdfast.cli.settings import Settings, settings_of

if TYPE_CHECKING:
    from holdfast.cli.loading import AppReference
    from holdfast.cli.supervising import StartWorker, TellOfCrash
    from holdfast.store.database import Database

_GRACE_SECONDS = 2  # seconds; what is cut off goes on with the new code


@command("dev", examples=("holdfast dev shop.py", "holdfast dev shop:app --data ./.holdfast"))
@click.argument("app_reference", metavar="MODULE:APP")
@click.option("--queue", "queues", multiple=True, help="Serve this queue; may be repeated.")
@log_level_option
@click.pass_context
def dev(
    context: click.Context, app_reference: str, queues: tuple[str, ...], log_level: str
) -> None:
    """Run an app's workflows while you write them.

    The embedded database is started and its schema made; a worker runs the app and starts anew
    whenever a Python file changes. Runs go on with the new code where the old one left off.
    MODULE:APP may be a file with one App in it; it must be one that can be loaded to begin with.
    Ctrl-C ends it all (exit code 130).
    """
    from holdfast.cli.connecting import database_of, prepare_schema
    from holdfast.cli.loading import AppReference
    from holdfast.cli.logs import configure

    settings = settings_of(context)
    configure(as_json=False, debug=settings.debug, level=log_level)
    reference = AppReference.parse(app_reference)
    with database_of(settings) as database:
        if database.server is None:
            asyncio.run(prepare_schema(database.url, settings.schema))
        _greet(settings, database)
        arguments = ["worker", app_reference, "--grace", str(_GRACE_SECONDS)]
        arguments += ["--log-level", log_level]
        arguments += [part for queue in queues for part in ("--queue", queue)]
        code = asyncio.run(_develop(settings, database, reference, arguments))
    context.exit(code)


def _greet(settings: Settings, database: Database) -> None:
    from shlex import join

    options = join(settings.arguments())
    options = f" {options}" if options else ""
    click.echo(f"database: {database}", err=True)
    if database.server is not None:
        click.echo(f"          {database.url}", err=True)
    click.echo(f"start a run:  holdfast{options} start WORKFLOW '{{…}}' --wait", err=True)
    click.echo(f"look at runs: holdfast{options} runs list", err=True)


async def _develop(
    settings: Settings, database: Database, reference: AppReference, arguments: list[str]
) -> int:
    from holdfast.cli.reloading import Reloader, python_changes
    from holdfast.cli.supervising import oversee

    def make(start: StartWorker, crashed: TellOfCrash) -> Reloader:
        return Reloader(start, crashed, python_changes(reference.directory), _GRACE_SECONDS)

    return await oversee(settings, database, arguments, make)
