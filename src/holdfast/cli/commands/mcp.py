"""`holdfast mcp`: tools for agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from holdfast.cli import exits
from holdfast.cli.finding import check_seen
from holdfast.cli.framework import command, option
from holdfast.cli.inputs import complete_app, hide_payloads_option, log_level_option, only_option
from holdfast.cli.settings import Settings, settings_of

if TYPE_CHECKING:
    from holdfast.database.resolve import Database
    from holdfast.definitions.app import App


@command(
    "mcp",
    examples=(
        "holdfast mcp",
        "holdfast mcp --allow write",
        "holdfast mcp --only shop --hide-payloads",
        "holdfast mcp --docs",
        "holdfast mcp --app shop:app --workflow refund",
    ),
)
@option(
    "--allow",
    "What agents may do: see runs, or also start, signal, decide, cancel and retry them.",
    type=click.Choice(("read", "write")),
    default="read",
)
@option("--docs", "Tools that search and read the documentation, and no database.")
@option(
    "--app MODULE:APP",
    "Offer the workflows of this app instead.",
    name="app_reference",
    shell_complete=complete_app,
)
@option(
    "--workflow NAME...",
    "With --app: offer this workflow; may be repeated. Default: all.",
    name="workflows",
)
@only_option
@hide_payloads_option
@log_level_option
@click.pass_context
def mcp(
    context: click.Context,
    allow: str,
    docs: bool,
    app_reference: str | None,
    workflows: tuple[str, ...],
    only: tuple[str, ...],
    hide_payloads: bool,
    log_level: str,
) -> None:
    """Let agents see runs, start those of an app, or read the documentation, over stdin and stdout.

    With --app the tools are the workflows of the app: agents may start them, get their results
    and send them signals, and see no other runs. Without it they are those of operators.

    It speaks the Model Context Protocol, so an agent's program starts it. It needs the extra
    holdfast[mcp]. It ends when stdin ends, and at Ctrl-C.
    """
    import asyncio
    import importlib.util
    import sys
    from contextlib import redirect_stdout

    from holdfast.errors import ConfigurationError

    exits.end_at_sigterm(context)
    _check_options(context.params)
    if importlib.util.find_spec("mcp") is None:
        raise ConfigurationError(
            "`holdfast mcp` needs the package mcp: pip install 'holdfast[mcp]'"
        )

    from holdfast.cli.connecting import checked_database
    from holdfast.cli.process.loading import load_app
    from holdfast.cli.process.logs import configure
    from holdfast.database.keeping import kept_running
    from holdfast.mcp.docs import DocsToolbox
    from holdfast.mcp.serving import serve

    settings = settings_of(context)
    configure(as_json=False, debug=settings.debug, level=log_level)
    if docs:
        interrupted = asyncio.run(serve(DocsToolbox()))
        context.exit(exits.INTERRUPTED if interrupted else exits.OK)
    with redirect_stdout(sys.stderr):  # stdout is for the protocol alone
        app = load_app(app_reference)
    with checked_database(settings) as database:

        async def work() -> bool:
            async with kept_running(database):
                if app is None:
                    return await _serve_operators(
                        settings, database, allow == "write", only, payloads=not hide_payloads
                    )
                return await _serve_app(settings, database, app, workflows)

        interrupted = asyncio.run(work())
    context.exit(exits.INTERRUPTED if interrupted else exits.OK)


def _check_options(given: Mapping[str, object]) -> None:
    """Refuse options that do not belong together. Raises UsageError."""
    docs, of_app = given["docs"], given["app_reference"] is not None
    if given["workflows"] and not of_app:
        raise click.UsageError("--workflow is for the workflows of an app: give --app")
    if docs and of_app:
        raise click.UsageError("give --docs or --app, not both")
    if (docs or of_app) and (given["allow"] != "read" or given["only"] or given["hide_payloads"]):
        raise click.UsageError(
            "--docs and --app have nothing to allow or hide: leave out --allow, --only and "
            "--hide-payloads"
        )


async def _serve_operators(
    settings: Settings, database: Database, may_write: bool, only: Sequence[str], *, payloads: bool
) -> bool:
    from holdfast.mcp.calling import Toolbox
    from holdfast.mcp.serving import serve
    from holdfast.server.access import AnyAccess
    from holdfast.server.site import Site

    site = Site(database, access=AnyAccess(), schema=settings.schema)
    try:
        if only:
            await site.open()
            await check_seen(site.store, only)
        return await serve(Toolbox(site, may_write=may_write, only=only, payloads=payloads))
    finally:
        await site.close()


async def _serve_app(
    settings: Settings, database: Database, app: App, workflows: tuple[str, ...]
) -> bool:
    from holdfast.mcp.server import McpServer
    from holdfast.store.opening import opened_store

    async with opened_store(database, settings.schema) as store:
        return await McpServer(app, store=store, workflows=workflows or None).run()
