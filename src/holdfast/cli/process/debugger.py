"""The debugger of `holdfast replay --pdb`, which stops in the user's code."""

from __future__ import annotations

from pdb import Pdb
from types import FrameType

import click

from holdfast.runtime.loop.user_code import is_user_code
from holdfast.types import Event


class _Debugger(Pdb):
    quitting = False  # until it begins

    def stop_here(self, frame: FrameType) -> bool:
        return is_user_code(frame.f_code.co_filename) and super().stop_here(frame)


def user_debugger() -> Pdb:
    """Return a debugger that stops only in code of the user."""
    return _Debugger(nosigint=True)


def stop_before(debugger: Pdb, first: int, place: int, event: Event) -> None:
    """Begin to debug before the entry at `first` is fed: the next line is one of the user's."""
    if place == first:
        click.echo(f"before entry {place}: {event.type} {event.key or ''}", err=True)
        debugger.set_trace()
