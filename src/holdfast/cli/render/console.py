"""Where commands write: rich text for people, JSON for scripts."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Callable, Iterable
from itertools import chain
from typing import TYPE_CHECKING

import click

from holdfast.values.moments import to_datetime

if TYPE_CHECKING:
    from rich.console import Console, JustifyMethod
    from rich.table import Column, Table
    from rich.text import Text

    from holdfast.types import JSON, Value


_WIDTH = 120  # characters, if stdout is not a terminal
_PLAIN = dict(zip("✓✗↻…·≤━┄◆", "+x~.-<=-*", strict=True))


def _with_plain_signs(error: UnicodeError) -> tuple[str, int]:
    """Replace what an encoding does not have, each character by one: columns stay in line."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(
        _PLAIN.get(each, "?") for each in error.object[error.start : error.end]
    ), error.end


_PLAIN_SIGNS = "holdfast.plain-signs"
codecs.register_error(_PLAIN_SIGNS, _with_plain_signs)


def console() -> Console:
    """Return the console of stdout, 120 characters wide if stdout is not a terminal.

    A sign that the encoding of stdout does not have is written as a plain one: what failed must
    not look like what is done. Other characters are written as `?`.
    """
    from rich.console import Console

    reconfigure: Callable[..., None] | None = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors=_PLAIN_SIGNS)
    width = None if sys.stdout.isatty() else _WIDTH
    return Console(width=width, highlight=False, emoji=False)


def table(*columns: Iterable[Column | str]) -> Table:
    """Return a table without lines; `folding`, `whole` and `numbers` make columns."""
    from rich.table import Table

    return Table(*chain(*columns), box=None, pad_edge=False, header_style="dim")


def folding(*names: str) -> list[Column]:
    """Return columns whose cells continue in the next line if they are too long."""
    from rich.table import Column

    return [Column(name, overflow="fold") for name in names]


def whole(*names: str, justify: JustifyMethod = "left") -> list[Column]:
    """Return columns whose cells are never wrapped."""
    from rich.table import Column

    return [Column(name, justify=justify, no_wrap=True) for name in names]


def numbers(*names: str) -> list[Column]:
    """Return columns of numbers and times: they stand at the right, and are never wrapped."""
    return whole(*names, justify="right")


def cut(text: str, style: str) -> Text:
    """Return a styled text that is cut, not wrapped, if its column is too narrow.

    On a narrow terminal, rich first narrows the columns that may wrap: make that of such texts
    without `no_wrap`.
    """
    from rich.text import Text

    return Text(text, style, no_wrap=True, overflow="ellipsis")


# Values of others stand in a log. None may move the cursor of who reads it, or rename the window.
CONTROLS = {
    code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"
}


def write_json(value: object) -> None:
    """Write one value as one line of JSON."""
    import msgspec

    click.echo(msgspec.json.encode(value).decode())


def plain(value: Value) -> dict[str, object]:
    """Return the fields of a value by name, for JSON: moments as datetimes (RFC 3339)."""
    return {name: _plain(name, getattr(value, name)) for name in value.__struct_fields__}


def _plain(name: str, field: object) -> object:
    from holdfast.types import Value

    if isinstance(field, Value):
        return plain(field)
    if isinstance(field, int) and (name.endswith("_at") or name == "at"):
        return to_datetime(field)
    return field


def decoded(text: str | None) -> JSON:
    """Decode JSON text."""
    import msgspec

    value: JSON = None if text is None else msgspec.json.decode(text)
    return value


def write_traceback(console: Console, traceback: str) -> None:
    """Write a recorded traceback, indented; nothing if it is empty."""
    from rich.text import Text

    for line in traceback.splitlines():
        console.print(Text(f"  {line}", "dim"), soft_wrap=True)
