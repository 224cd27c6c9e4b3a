"""How a run that was waited for is reported: its output on stdout, the rest on stderr."""

from __future__ import annotations

import click

from holdfast.cli import exits
from holdfast.cli.console import decoded, write_json
from holdfast.cli.render_runs import run_object
from holdfast.cli.settings import Settings
from holdfast.insight.spans import error_text
from holdfast.insight.wording import length
from holdfast.types import RunRecord


def report_end(settings: Settings, run: RunRecord) -> int:
    """Write how a run ended; return the exit code that says so."""
    if settings.json:
        write_json(run_object(run))
    else:
        took = length((run.completed_at or run.created_at) - run.created_at)
        error = error_text(decoded(run.error))
        state = run.state.replace("_", " ")
        click.echo(f"{state} after {took}" + (f": {error}" if error else ""), err=True)
        if run.status == "completed":
            click.echo(run.output or "null")
    return exits.OK if run.status == "completed" else exits.FAILED
