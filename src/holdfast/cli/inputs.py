"""What people type: JSON from the argument, a file or stdin; moments; lengths of time."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from holdfast.durations import seconds
from holdfast.errors import ConfigurationError

LOG_LEVELS = ("debug", "info", "warning", "error")

log_level_option = click.option(
    "--log-level",
    type=click.Choice(LOG_LEVELS),
    default="info",
    show_default=True,
    help="Write log lines of this level and above.",
)

_number = re.compile(r"\d+(?:\.\d+)?")


def read_json(text: str | None, what: str) -> str:
    """Return JSON text from the argument, `@file`, or `-` for stdin; `null` without an argument.

    Stdin is read for `-` only: in a shell loop it holds what the loop reads. Raises
    click.BadParameter if the text is not JSON.
    """
    import msgspec

    from holdfast.codec import MAX_DEPTH, depth

    source, content = _read(text)
    if not content.strip() and source != "argument":
        return "null"
    try:
        if depth(content.encode()) > MAX_DEPTH:
            raise click.BadParameter(f"the {what} is nested more than {MAX_DEPTH} levels deep")
        msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeError) as error:
        hint = ""
        if source == "argument" and text and text[0].isalpha():
            hint = f"; a text takes quotes: '\"{text}\"'"
        raise click.BadParameter(f"the {what} is no JSON ({error}){hint}") from None
    return content


def _read(text: str | None) -> tuple[str, str]:
    """Return where the text came from, and the text."""
    if text == "-":
        try:
            return "stdin", sys.stdin.read()
        except UnicodeDecodeError as error:
            raise click.BadParameter(f"stdin cannot be read: {error}") from None
    if text is None:
        return "nothing", ""
    if text.startswith("@"):
        path = Path(text[1:]).expanduser()
        try:
            return "file", path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise click.BadParameter(f"{path} cannot be read: {error}") from None
    return "argument", text


def named_values(texts: Sequence[str], what: str) -> dict[str, object]:
    """Read values as they are given on the command line: `NAME=JSON`, `NAME=@FILE`."""
    from holdfast.cli.console import decoded

    values: dict[str, object] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is no {what}: write NAME=JSON")
        values[name] = decoded(read_json(value, f"{what} {name}"))
    return values


def filled(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse an empty text: it is a shell variable that was never set, not a wish."""
    if value == "":
        raise click.BadParameter("it is empty")
    return value


def past_moment(text: str) -> datetime:
    """Read a moment: ISO 8601 (local time unless it names a zone), or how long ago (`2h`)."""
    return _moment(text, -1)


def future_moment(text: str) -> datetime:
    """Read a moment: ISO 8601 (local time unless it names a zone), or how far ahead (`2h`)."""
    return _moment(text, 1)


def duration(text: str) -> float:
    """Read a length of time: seconds, or with units `250ms`, `90s`, `1h30m`, `7d`."""
    try:
        return seconds(float(text)) if _number.fullmatch(text) else seconds(text)
    except ConfigurationError as error:
        raise click.BadParameter(str(error)) from None


def _moment(text: str, direction: int) -> datetime:
    try:
        written = datetime.fromisoformat(text)
    except ValueError:
        pass
    else:
        if written.tzinfo is None:
            local = written.astimezone().isoformat()
            click.echo(f"{text} names no time zone: taken as {local}", err=True)
        return written.astimezone(UTC)
    try:
        return datetime.now(UTC) + direction * timedelta(seconds=seconds(text))
    except (ConfigurationError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is neither a time (2030-01-31T12:00) nor a length of time (90m)"
        ) from None
