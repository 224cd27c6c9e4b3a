"""`holdfast dev`: run an app while it is being written."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from holdfast.cli import exits
from holdfast.cli.exits import Refusal
from holdfast.cli.framework import command
from holdfast.cli.inputs import (
    app_argument,
    log_level_option,
    queue_option,
    replace_flows_option,
)
from holdfast.cli.render.hints import with_database
from holdfast.cli.settings import Settings, settings_of

if TYPE_CHECKING:
    from holdfast.cli.process.loading import AppReference
    from holdfast.cli.process.supervising import StartWorker, TellOfCrash
    from holdfast.database.resolve import Database

_GRACE_SECONDS = 2  # a step that is cut off is executed again with the new code


@command("dev", examples=("holdfast dev shop.py", "holdfast dev shop:app --data ./.holdfast"))
@app_argument
@queue_option
@click.option(
    "--migrate",
    is_flag=True,
    help="Bring the schema of your own server up to date without asking.",
)
@replace_flows_option
@log_level_option
@click.pass_context
def dev(
    context: click.Context,
    app_reference: str,
    queues: tuple[str, ...],
    migrate: bool,
    replace_flows: bool,
    log_level: str,
) -> None:
    """Run the workflows and flows of an app while you write them.

    The embedded database is started and its schema is created. On your own server you are asked
    before its schema is changed. A worker runs the app, and is replaced whenever
    a Python file changes. Runs continue with the new code where the old code stopped. Each run
    is replayed whenever it wakes, so that code that is not deterministic is found at once.

    MODULE:APP is a module and the name of the App in it, or a file: shop:app, src/shop.py:app,
    or shop.py if the file has only one App. It must be loadable when the command starts.

    breakpoint() in a step or a workflow opens the debugger in this terminal; in a workflow also
    during a replay. Ctrl-C ends everything (exit code 130).
    """
    import asyncio

    from holdfast.cli.connecting import database_of
    from holdfast.cli.process.loading import AppReference
    from holdfast.cli.process.logs import configure

    settings = settings_of(context)
    configure(as_json=False, debug=settings.debug, level=log_level)
    reference = AppReference.parse(app_reference)
    with database_of(settings) as database:
        if database.server is None:
            _prepare(settings, database, migrate)
        _greet(database)
        arguments = ["worker", app_reference, "--grace", str(_GRACE_SECONDS)]
        arguments += ["--log-level", log_level, "--check"]
        arguments += ["--replace-flows"] if replace_flows else []
        arguments += [part for queue in queues for part in ("--queue", queue)]
        code = asyncio.run(_develop(settings, database, reference, arguments))
    context.exit(code)


def _prepare(settings: Settings, database: Database, migrate: bool) -> None:
    """Bring the schema of a server up to date after asking: other programs may depend on it."""
    import asyncio

    from holdfast.cli.connecting import plan_schema, prepare_schema

    todo = asyncio.run(plan_schema(database.url, settings.schema))
    if todo.is_empty:
        return
    what = f"the schema {settings.schema!r} of {database} is not the one of this release"
    if not migrate:
        if not sys.stdin.isatty():
            raise Refusal(
                f"{what}: run `holdfast migrate`, or give --migrate to have it done here",
                exits.USAGE,
            )
        click.confirm(f"{what}. Migrate it?", abort=True, err=True)
    asyncio.run(prepare_schema(database.url, settings.schema))


def _greet(database: Database) -> None:
    click.echo(f"database: {database}", err=True)
    if database.server is not None:
        click.echo(f"          {database.url}", err=True)
    click.echo(with_database("start a run:  holdfast start WORKFLOW '{…}' --wait"), err=True)
    click.echo(with_database("look at runs: holdfast runs list"), err=True)


async def _develop(
    settings: Settings, database: Database, reference: AppReference, arguments: list[str]
) -> int:
    from holdfast.cli.process.reloading import Reloader, python_changes
    from holdfast.cli.process.supervising import oversee

    def make(start: StartWorker, crashed: TellOfCrash) -> Reloader:
        return Reloader(start, crashed, python_changes(reference.directory), _GRACE_SECONDS)

    return await oversee(settings, database, arguments, make, reads=True)
