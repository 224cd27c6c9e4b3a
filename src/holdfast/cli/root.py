"""`holdfast` itself: the global options, and where the commands are."""

from __future__ import annotations

import click

from holdfast._version import __version__
from holdfast.cli.framework import RootGroup

_COMMANDS = "holdfast.cli.commands"


@click.group(
    "holdfast",
    cls=RootGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    sources={
        "dev": f"{_COMMANDS}.dev:dev",
        "worker": f"{_COMMANDS}.worker:worker",
        "start": f"{_COMMANDS}.start:start",
        "runs": f"{_COMMANDS}.runs:runs",
        "schedules": f"{_COMMANDS}.schedules:schedules",
        "flows": f"{_COMMANDS}.flows:flows",
        "approvals": f"{_COMMANDS}.approvals:approvals",
        "activities": f"{_COMMANDS}.activities:activities",
        "alerts": f"{_COMMANDS}.alerts:alerts",
        "builds": f"{_COMMANDS}.builds:builds",
        "limits": f"{_COMMANDS}.limits:limits",
        "rules": f"{_COMMANDS}.rules:rules",
        "topics": f"{_COMMANDS}.topics:topics",
        "queue": f"{_COMMANDS}.queue:queue",
        "queues": f"{_COMMANDS}.pausable:queues",
        "workflows": f"{_COMMANDS}.pausable:workflows",
        "workers": f"{_COMMANDS}.worker:workers",
        "server": f"{_COMMANDS}.server:server",
        "mcp": f"{_COMMANDS}.mcp:mcp",
        "migrate": f"{_COMMANDS}.database:migrate",
        "shards": f"{_COMMANDS}.shards:shards",
        "archive": f"{_COMMANDS}.archive:archive",
        "sweep": f"{_COMMANDS}.sweep:sweep",
        "check": f"{_COMMANDS}.check:check",
        "replay": f"{_COMMANDS}.replay:replay",
        "doctor": f"{_COMMANDS}.database:doctor",
        "docs": f"{_COMMANDS}.docs:docs",
        "init": f"{_COMMANDS}.init:init",
        "demo": f"{_COMMANDS}.demo:demo",
    },
    examples=(
        "holdfast demo                                see a killed worker lose nothing",
        "holdfast dev shop.py                         run your app while you write it",
        """holdfast start checkout '{"id": 7}' --wait   start a run and watch it""",
        "holdfast runs why checkout/order-7           what it waits for, and what would move it",
    ),
)
@click.version_option(__version__, message="holdfast %(version)s")
def holdfast() -> None:
    """Durable workflows for Python on PostgreSQL.

    Workflows are plain async functions. What they have done is recorded, so they survive
    crashes, deploys and months of waiting. If you do not name a database, an embedded
    PostgreSQL is started. The options below may be given before or after a command.
    """
