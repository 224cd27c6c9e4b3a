"""A recorded traceback as lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def write_traceback(console: Console, traceback: str) -> None:
    """Write a recorded traceback, indented; nothing where there is none."""
    from rich.text import Text

    for line in traceback.splitlines():
        console.print(Text(f"  {line}", "dim"), soft_wrap=True)
