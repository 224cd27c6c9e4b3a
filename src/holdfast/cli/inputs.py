"""Read what people type: JSON, moments, lengths of time, filters, names of apps."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import click

from holdfast.cli.framework import option, together
from holdfast.cli.render.console import decoded
from holdfast.errors import ConfigurationError
from holdfast.values.durations import seconds

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from holdfast.client.filters import RunFilters
    from holdfast.types import AttributeValue


LOG_LEVELS = ("debug", "info", "warning", "error")

queue_option = option(
    "--queue NAME...",
    "Serve this queue; may be repeated. Default: the queues of the app.",
    name="queues",
)
replace_flows_option = option(
    "--replace-flows",
    "Replace a flow whose steps have changed under the same version, and terminate its open runs.",
)
log_level_option = option(
    "--log-level",
    "Write log lines of this level and higher.",
    type=click.Choice(LOG_LEVELS),
    default="info",
)

after_option = option(
    "--after OFFSET",
    "Write only what comes after this offset.",
    type=click.IntRange(0),
    default=0,
    show_default=False,
)
only_option = option(
    "--only APP...", "Show the runs of this app only, or of the workflow APP/NAME; may be repeated."
)
hide_payloads_option = option(
    "--hide-payloads", "Show no inputs, results, signals and texts of errors."
)


def complete_app(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the apps of the current directory for a shell; a path is completed by the shell."""
    from click.shell_completion import CompletionItem

    from holdfast.cli.process.app_names import find_app_names

    if "/" in incomplete or incomplete.startswith(("~", ".")):
        return [CompletionItem(incomplete, type="file")]
    found = find_app_names(Path.cwd())
    return [CompletionItem(name) for name in found if name.startswith(incomplete)]


app_argument = click.argument("app_reference", metavar="MODULE:APP", shell_complete=complete_app)
app_option = option(
    "--app MODULE:APP",
    "Check the input against the types of this app.",
    name="app_reference",
    shell_complete=complete_app,
)

_number = re.compile(r"\d+(?:\.\d+)?")


def read_json(text: str | None, what: str) -> str:
    """Return JSON text from the argument, `@file`, or `-` for stdin; `null` without an argument.

    Stdin is read only for `-`: in a shell loop, stdin belongs to the loop. Raises
    click.BadParameter if the text is not JSON.
    """
    import msgspec

    from holdfast.codec import MAX_DEPTH, depth, why_not_json

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
            hint = f"; a text needs quotes: '\"{text}\"'"
        why = why_not_json(content.encode(errors="replace"), error)
        raise click.BadParameter(f"the {what} is not JSON ({why}){hint}") from None
    return content


def json_of(what: str) -> Callable[[click.Context, click.Parameter, str | None], object]:
    """Return the callback of a parameter that is JSON, as `read_json` reads it."""

    def read(context: click.Context, parameter: click.Parameter, text: str | None) -> object:
        if context.resilient_parsing:  # a shell completes the line: stdin is not ours
            return None
        try:
            return decoded(read_json(text, what))
        except click.BadParameter as error:  # which would name the parameter a second time
            raise click.UsageError(f"Invalid value: {error.message}") from None

    return read


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
        except OSError as error:
            raise click.BadParameter(f"{path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise click.BadParameter(f"{path} cannot be read: {error}") from None
    return "argument", text


def named_values(texts: Sequence[str], what: str) -> dict[str, object]:
    """Return the values of `NAME=JSON` and `NAME=@FILE` arguments, by name."""
    values: dict[str, object] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not a {what}: write NAME=JSON")
        values[name] = decoded(read_json(value, f"{what} {name}"))
    return values


def confirm(question: str) -> None:
    """Ask before something is lost. Raises click.Abort, and UsageError if nobody can answer."""
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise  # Ctrl-C
        click.echo("", err=True)
        told = "nobody has answered: give --yes where you cannot be asked"
        raise click.UsageError(told) from None
    if not agreed:
        raise click.Abort


def filled(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse an empty text: it comes from a shell variable that was never set."""
    if value == "":
        raise click.BadParameter("it is empty")
    return value


def past_moment(text: str) -> datetime:
    """Return a moment from ISO 8601 (local time unless it names a zone) or how long ago (`2h`)."""
    return _moment(text, -1)


def future_moment(text: str) -> datetime:
    """Return a moment from ISO 8601 (local time unless it names a zone) or how far ahead (`2h`)."""
    return _moment(text, 1)


def duration(text: str) -> float:
    """Return a length of time in seconds, from seconds or with units: `250ms`, `1h30m`, `7d`."""
    try:
        return seconds(float(text)) if _number.fullmatch(text) else seconds(text)
    except ConfigurationError as error:
        raise click.BadParameter(str(error)) from None


_MOST_PROCESSES: Final = 1_000


def process_count(text: str) -> int:
    """Return a number of processes; for `auto`, that of the processors that this one may use."""
    if text == "auto":
        return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    if not text.isdecimal() or not text.strip("0"):
        raise click.BadParameter(f"{text!r} is not a number from 1 on, and not auto")
    if len(text) > 4 or int(text) > _MOST_PROCESSES:  # each takes 40 MB and connections
        raise click.BadParameter(f"one command keeps at most {_MOST_PROCESSES:,} processes")
    return int(text)


def _moment(text: str, direction: int) -> datetime:
    try:
        written = datetime.fromisoformat(text)
    except ValueError:
        pass
    else:
        if written.tzinfo is None:
            local = written.astimezone().isoformat()
            click.echo(f"{text} has no time zone: read as {local}", err=True)
        return written.astimezone(UTC)
    try:
        return datetime.now(UTC) + direction * timedelta(seconds=seconds(text))
    except (ConfigurationError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is neither a time (2030-01-31T12:00) nor a length of time (90m)"
        ) from None


def attribute_values(texts: Sequence[str]) -> dict[str, AttributeValue]:
    """Return the attributes of `NAME=VALUE` arguments. Raises click.BadParameter."""
    from holdfast.errors import InvalidInput
    from holdfast.values.attributes import read_attributes

    try:
        return read_attributes(texts)
    except InvalidInput as error:
        raise click.BadParameter(str(error)) from None


def given_options(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options of runs that were given, by the names that the client has for them."""
    from holdfast.values.retention import shortened

    found = {name: each for name, each in given.items() if each not in (None, ())}
    if (told := shortened(found.get("retention"))) is not None:
        click.echo(told, err=True)
    if "attributes" in found:
        found["attributes"] = attribute_values(found["attributes"])
    if "workflow_version" in found:
        found["version"] = found.pop("workflow_version")
    return found


_NAMES = {
    "states": "states",
    "workflows": "names",
    "queues": "queues",
    "tags": "tags",
    "build": "build",
    "key": "key",
    "parent": "parent",
    "since": "since",
    "until": "until",
}
filter_options = together(
    option(
        "--state STATE...",
        "Runs in this state: queued, running, waiting, stuck, paused, completed, failed, "
        "cancelled, timed_out, terminated or continued.",
        name="states",
    ),
    option("--workflow NAME...", "Runs of this workflow or flow.", name="workflows"),
    option("--queue NAME...", "Runs of this queue.", name="queues"),
    option("--tag TAG...", "Runs with this tag; if repeated, with all of these tags.", name="tags"),
    option("--where NAME=VALUE...", "Runs with this attribute; if repeated, with all of these."),
    option("--build BUILD", "Runs that stay with this build."),
    option(
        "--key KEY", "Runs of this key: started with it, or continued or retried from such a run."
    ),
    option("--parent RUN", "Runs that this run started."),
    option(
        "--since MOMENT",
        "Runs created at this moment or later: 2030-01-31T12:00, or 2h for two hours ago.",
        type=past_moment,
    ),
    option("--until MOMENT", "Runs created before this moment.", type=past_moment),
    option("--input JSON", "Runs with an input that contains this JSON.", name="contains"),
)


def read_filters(options: dict[str, object]) -> RunFilters:
    """Remove the filters from a command's options and return them, empty if none was given.

    `parent` is still the text that names a run; `finding.find_parent` looks up its id.
    """
    given: Mapping[str, object] = {name: options.pop(option) for option, name in _NAMES.items()}
    filters = {name: value for name, value in given.items() if value not in (None, ())}
    if where := cast("tuple[str, ...]", options.pop("where")):
        filters["where"] = attribute_values(where)
    contains = options.pop("contains")
    if contains is not None:
        filters["input_contains"] = decoded(read_json(str(contains), "input to look for"))
    return cast("RunFilters", filters)
