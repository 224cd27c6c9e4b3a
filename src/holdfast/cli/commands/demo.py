"""`holdfast demo`: see a killed worker lose nothing."""

from __future__ import annotations

import signal
import tempfile
from dataclasses import replace
from pathlib import Path

import click

from holdfast.cli.framework import command
from holdfast.cli.settings import settings_of


@command("demo", examples=("holdfast demo", "holdfast demo --data ~/.holdfast     keep the run"))
@click.pass_context
def demo(context: click.Context) -> None:
    """Kill a worker midway, and see its run lose nothing.

    An order is fulfilled with steps, a durable timer, a signal and a fan-out. Its worker is
    killed with SIGKILL while it packs, another takes over, and what the steps did to the
    outside is compared with what the run's log says.

    Needs nothing: the embedded database runs in a temporary directory (or in that of --data,
    or the one that --database names), and nothing is left running. Takes about ten seconds.
    """
    from holdfast.cli.connecting import Link, with_link
    from holdfast.cli.process.demonstration import Demonstration
    from holdfast.cli.render.console import console
    from holdfast.demo.app import app

    # Whoever ends it early, by Ctrl-C or by a time limit: nothing is left running.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    settings = settings_of(context)
    output = console()
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as scratch:
        if settings.database is None and settings.data is None:
            output.print("an embedded PostgreSQL is set up in a temporary directory …")
            settings = replace(settings, data=Path(scratch) / "data")

        async def work(link: Link) -> int:
            return await Demonstration(settings, link, Path(scratch), output).run()

        code = with_link(settings, work, app=app, make=True)
    context.exit(code)
