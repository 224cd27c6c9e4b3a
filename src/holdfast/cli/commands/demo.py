"""`holdfast demo`: see a killed worker lose nothing."""

from __future__ import annotations

import signal
import tempfile
from dataclasses import replace
from pathlib import Path

import click

from holdfast.cli.framework import command
from holdfast.cli.render.console import console
from holdfast.cli.settings import settings_of


@command("demo", examples=("holdfast demo", "holdfast demo --data ~/.holdfast     keep the run"))
@click.pass_context
def demo(context: click.Context) -> None:
    """Kill a worker midway, and see that its run loses nothing.

    An order is fulfilled with steps, a durable timer, a signal and a fan-out. Its worker is
    killed with SIGKILL while it packs, and another worker takes over. Then the effects of the
    steps on the outside world are compared with the log of the run.

    Nothing needs to be installed or prepared: the embedded database runs in a temporary
    directory, unless --data or --database is given. Afterwards nothing is left running. It takes
    about ten seconds.
    """
    from holdfast.cli.connecting import Link, refuse_several, with_link
    from holdfast.cli.process.demonstration import Demonstration
    from holdfast.demo.app import app

    # If it is stopped early, by Ctrl-C or SIGTERM, nothing is left running.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    settings = settings_of(context)
    output = console()
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as scratch:
        if settings.database is None and settings.data is None:
            output.print("an embedded PostgreSQL is set up in a temporary directory …")
            settings = replace(settings, data=Path(scratch) / "data")

        async def work(link: Link) -> int:
            refuse_several(link.database, "the demo", "leave them out")
            return await Demonstration(settings, link, Path(scratch), output).run()

        code = with_link(settings, work, app=app, make=True)
    context.exit(code)
