"""How far an operation on many runs has come, on stderr."""

from __future__ import annotations

import sys
import time

import click

from holdfast.client.bulk import BulkOutcome
from holdfast.insight.wording import several

_LINE_SECONDS = 5.0  # between two lines where stderr is no terminal


class Counter:
    """Shows the counts so far: in place on a terminal, now and then as a line elsewhere."""

    def __init__(self) -> None:
        self.outcome = BulkOutcome()
        self._on_terminal = sys.stderr.isatty()
        self._next_line = time.monotonic() + _LINE_SECONDS

    def __call__(self, outcome: BulkOutcome) -> None:
        """Take the counts so far."""
        self.outcome = outcome
        text = f"{outcome.changed:,} of {several(outcome.matched, 'run')} …"
        if self._on_terminal:
            click.echo(f"\r{text}\x1b[K", err=True, nl=False)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LINE_SECONDS
            click.echo(text, err=True)

    def end(self) -> None:
        """Leave the line free for what comes next."""
        if self._on_terminal:
            click.echo("\r\x1b[K", err=True, nl=False)
