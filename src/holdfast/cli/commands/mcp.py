"""`holdfast mcp`: tools for agents."""

from __future__ import annotations

import click

from holdfast.cli import exits
from holdfast.cli.framework import command
from holdfast.cli.inputs import log_level_option
from holdfast.cli.settings import settings_of


@command("mcp", examples=("holdfast mcp", "holdfast mcp --allow write"))
@click.option(
    "--allow",
    type=click.Choice(("read", "write")),
    default="read",
    show_default=True,
    help="What agents may do: see runs, or also start, signal, decide, cancel and retry them.",
)
@log_level_option
@click.pass_context
def mcp(context: click.Context, allow: str, log_level: str) -> None:
    """Let agents see runs, over stdin and stdout.

    It speaks the Model Context Protocol, so an agent's program starts it. It needs the extra
    holdfast[mcp]. It ends when stdin ends, and at Ctrl-C.
    """
    import asyncio
    import importlib.util

    from holdfast.errors import ConfigurationError

    if importlib.util.find_spec("mcp") is None:
        raise ConfigurationError(
            "`holdfast mcp` needs the package mcp: pip install 'holdfast[mcp]'"
        )

    from holdfast.cli.connecting import checked_database
    from holdfast.cli.process.logs import configure
    from holdfast.database.keeping import kept_running
    from holdfast.mcp.calling import Toolbox
    from holdfast.mcp.serving import serve
    from holdfast.server.access import AnyAccess
    from holdfast.server.site import Site

    settings = settings_of(context)
    configure(as_json=False, debug=settings.debug, level=log_level)
    with checked_database(settings) as database:

        async def work() -> bool:
            async with kept_running(database):
                site = Site(database, access=AnyAccess(), schema=settings.schema)
                try:
                    return await serve(Toolbox(site, may_write=allow == "write"))
                finally:
                    await site.close()

        interrupted = asyncio.run(work())
    context.exit(exits.INTERRUPTED if interrupted else exits.OK)
