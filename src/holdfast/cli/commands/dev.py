"""`holdfast dev`: run an app while it is being written."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import click

from holdfast.cli import exits
from holdfast.cli.exits import Refusal
from holdfast.cli.framework import command, option
from holdfast.cli.inputs import app_argument, log_level_option, queue_option, replace_flows_option
from holdfast.cli.render.hints import with_database
from holdfast.cli.settings import Settings, settings_of

if TYPE_CHECKING:
    from holdfast.cli.process.loading import AppReference
    from holdfast.cli.process.supervising import StartWorker, TellOfCrash
    from holdfast.database.resolve import Database
    from holdfast.server.catalogue import Catalogue

_PORTS = 20  # that are tried for the dashboard
_LOOK_SECONDS = 0.1
_GRACE_SECONDS = 2  # a step that is cut off is executed again with the new code


@command("dev", examples=("holdfast dev shop.py", "holdfast dev shop:app --data ./.holdfast"))
@app_argument
@queue_option
@option("--migrate", "Bring the schema of your own server up to date without asking.")
@replace_flows_option
@option(
    "--port",
    "The port of the dashboard on this machine; if it is taken, the next one that is free.",
    type=click.IntRange(0, 65535),
    default=7433,
)
@option("--open", "Open the dashboard in a browser.", name="opens")
@log_level_option
@click.pass_context
def dev(
    context: click.Context,
    app_reference: str,
    queues: tuple[str, ...],
    migrate: bool,
    replace_flows: bool,
    port: int,
    opens: bool,
    log_level: str,
) -> None:
    """Run the workflows and flows of an app while you write them.

    The embedded database is started and its schema is created. On your own server you are asked
    before its schema is changed. A worker runs the app, and is replaced whenever
    a Python file changes. A dashboard is served on this machine, and its link is printed: it has
    the key of this machine. Runs continue with the new code where the old code stopped. Each run
    is replayed whenever it wakes, so that code that is not deterministic is found at once. What
    its code logs is kept with it: holdfast runs logs.

    MODULE:APP is a module and the name of the App in it, or a file: shop:app, src/shop.py:app,
    or shop.py if the file has only one App. It must be loadable when the command starts.

    breakpoint() in a step or a workflow opens the debugger in this terminal; in a workflow also
    during a replay. Ctrl-C ends everything (exit code 130).
    """
    exits.end_at_sigterm(context)
    import asyncio

    from holdfast.cli.connecting import database_of, refuse_several
    from holdfast.cli.process.loading import AppReference
    from holdfast.cli.process.logs import configure

    settings = settings_of(context)
    configure(as_json=False, debug=settings.debug, level=log_level)
    reference = AppReference.parse(app_reference)
    with database_of(settings) as database:
        refuse_several(database, "dev", "run `holdfast worker` and `holdfast server`")
        if database.server is None:
            _prepare(settings, database, migrate)
        _greet(database)
        arguments = ["worker", app_reference, "--grace", str(_GRACE_SECONDS)]
        arguments += ["--log-level", log_level, "--check", "--run-logs"]
        arguments += ["--replace-flows"] if replace_flows else []
        arguments += [part for queue in queues for part in ("--queue", queue)]
        code = asyncio.run(_develop(settings, database, reference, arguments, port, opens))
    context.exit(code)


def _prepare(settings: Settings, database: Database, migrate: bool) -> None:
    """Bring the schema of a server up to date after asking: other programs may depend on it."""
    import asyncio

    from holdfast.cli.connecting import plan_schema
    from holdfast.database.migrate import prepare_schema

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
    settings: Settings,
    database: Database,
    reference: AppReference,
    arguments: list[str],
    port: int,
    opens: bool,
) -> int:
    import asyncio

    from holdfast.cli.process.catalogue import ChangingCatalogue
    from holdfast.cli.process.reloading import Reloader, python_changes
    from holdfast.cli.process.supervising import is_signed_on, oversee
    from holdfast.errors import DatabaseError
    from holdfast.store.opening import opened_store

    catalogue = ChangingCatalogue(arguments[1], settings)
    made: list[Reloader] = []

    def make(start: StartWorker, crashed: TellOfCrash) -> Reloader:
        changes = catalogue.noticing(python_changes(reference.directory))
        made.append(Reloader(start, crashed, changes, _GRACE_SECONDS))
        return made[0]

    async def worker_is_ready() -> None:
        async with opened_store(database, settings.schema, connections=1) as store:
            while True:
                with suppress(DatabaseError):  # it may be away for a moment
                    child = made[0].child if made else None
                    if child is not None and await is_signed_on(store, child):
                        return
                await asyncio.sleep(_LOOK_SECONDS)

    async with _dashboard(settings, database, catalogue, port, opens, worker_is_ready):
        return await oversee(settings, database, arguments, make, reads=True)


@asynccontextmanager
async def _dashboard(
    settings: Settings,
    database: Database,
    catalogue: Catalogue,
    port: int,
    opens: bool,
    ready: Callable[[], Awaitable[None]],
) -> AsyncGenerator[None]:
    """Serve the dashboard while the block lasts, at the first port that is free.

    Its link is written when `ready` returns.
    """
    import asyncio

    from holdfast.database.embedded import default_home
    from holdfast.server.access import KeyAccess
    from holdfast.server.running import STREAM_SECONDS, bind, running_beside
    from holdfast.server.server import Server
    from holdfast.server.tokens import machine_key
    from holdfast.webhooks import PUBLIC_URL_VARIABLE

    key = machine_key((settings.data or default_home()).expanduser())
    bound = None
    for each in range(port, min(port + _PORTS, 65536)):
        try:
            bound = bind("127.0.0.1", each)
            break
        except OSError:
            continue
    if bound is None:
        click.echo(f"no dashboard: ports {port} to {port + _PORTS - 1} are taken", err=True)
        yield
        return
    at = bound.getsockname()[1]
    if port not in (0, at):
        click.echo(f"port {port} is taken: the dashboard is at {at}", err=True)
    os.environ.setdefault(PUBLIC_URL_VARIABLE, f"http://127.0.0.1:{at}")  # for the worker
    server = Server(
        database,
        auth=KeyAccess(key),
        catalogue=catalogue,
        schema=settings.schema,
        stream_seconds=STREAM_SECONDS,
    )
    async with running_beside(server, bound, grace_seconds=_GRACE_SECONDS):
        url = f"http://127.0.0.1:{at}/login?key={key}"
        telling = asyncio.create_task(_tell_link(url, ready, opens))
        try:
            yield
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)


async def _tell_link(url: str, ready: Callable[[], Awaitable[None]], opens: bool) -> None:
    """Write the link once the code is loaded: if it cannot be, the command ends with the reason."""
    await ready()
    click.echo(f"dashboard:    {url}", err=True)
    if opens:
        click.launch(url)
