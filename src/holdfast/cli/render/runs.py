"""Runs as tables and summaries for people, and as objects for scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from holdfast.cli.render.console import CONTROLS, numbers, table, whole
from holdfast.insight.shapes import event_shape, run_shape, shown_details
from holdfast.insight.spans import error_text, read_json
from holdfast.insight.traces import find_trace
from holdfast.insight.wording import ago, failed_times, length, moment, queued_and_worked, shorten
from holdfast.types import JSON, SCHEDULE_HEADER, TICK_HEADER, LoggedEvent, LogLine, RunRecord
from holdfast.values.attributes import attribute_filters

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

STYLES = {
    "queued": "blue",
    "running": "cyan",
    "waiting": "yellow",
    "stuck": "bold red",
    "paused": "yellow",
    "completed": "green",
    "failed": "red",
    "cancelled": "dim",
    "timed_out": "red",
    "terminated": "dim red",
    "continued": "green",
}
_LONGEST = 300
_ROOM_FOR_IDS = 120  # characters of a line: with fewer, a list shows the ends of ids
_ROOM_FOR_TIMES = 100  # with fewer, it does not show how long runs waited and took
_ID_END = 12  # characters: the last group of an id


def run_object(run: RunRecord) -> dict[str, object]:
    """Return a run for JSON, with its payloads as JSON."""
    return _members(run_shape(run))


def event_object(entry: LoggedEvent) -> dict[str, object]:
    """Return a log's entry for JSON."""
    return _members(event_shape(entry))


def _members(shape: msgspec.Struct) -> dict[str, object]:
    members = msgspec.structs.asdict(shape)
    return {name: value for name, value in members.items() if value is not msgspec.UNSET}


def runs_table(runs: Sequence[RunRecord], now: int, width: int) -> Table:
    """Return runs as a table, in their order.

    `in queue` is the time from when a run could begin until a worker took it, `took` that from
    then until its end. If a line has less than 120 characters, only the end of an id is shown,
    which is enough to name the run; with less than 100, `in queue` and `took` are left out. Names
    and keys are cut before anything else.
    """
    id_from = 0 if width >= _ROOM_FOR_IDS else -_ID_END
    lengths = ("in queue", "took") if width >= _ROOM_FOR_TIMES else ()
    times = numbers("started", *lengths)
    shown = table(whole("run"), ["workflow", "key"], whole("state"), times)
    for run in runs:
        shown.add_row(
            str(run.run_id)[id_from:],
            run.handler,
            shorten(run.key or "", 24),
            state_text(run),
            ago(run.created_at, now),
            *(queued_and_worked(run, now) if lengths else ()),
        )
    return shown


def state_text(run: RunRecord) -> Text:
    """Return the state of a run in its colour."""
    from rich.text import Text

    failed = failed_times(run)
    state = run.state.replace("_", " ") + (f", {failed}" if failed else "")
    return Text(state, STYLES.get(run.state, ""))


def summary(run: RunRecord, values: Mapping[str, JSON], now: int) -> Table:
    """Return one run as a table of its properties."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("run", str(run.run_id))
    table.add_row(run.kind, run.handler)
    table.add_row("state", state_text(run))
    for name, value in _facts(run, now):
        table.add_row(name, Text(shorten(value, _LONGEST)))
    for name, json in values.items():
        table.add_row(f"value {name}", Text(shorten(_json(json), _LONGEST)))
    return table


def _facts(run: RunRecord, now: int) -> list[tuple[str, str]]:
    facts = [("key", run.key), ("queue", run.queue), ("tags", ", ".join(run.tags))]
    facts.append(("attributes", ", ".join(attribute_filters(run.attributes))))
    headers = run.headers or {}
    if SCHEDULE_HEADER in headers:
        facts.append(("schedule", f"{headers[SCHEDULE_HEADER]}, tick {headers.get(TICK_HEADER)}"))
    if run.parent_run_id is not None:
        facts.append(("parent", f"{run.parent_run_id} ({run.parent_key})"))
    if (trace := find_trace(run)) is not None:
        facts.append(("trace", trace.url or trace.trace_id))
    facts.append(("input", None if run.input == "null" else run.input))
    facts.append(("created", f"{moment(run.created_at)} ({ago(run.created_at, now)})"))
    if run.last_failure is not None:
        error = error_text(read_json(run.last_failure.error))
        facts.append((f"attempt {run.last_failure.number}", f"failed: {error}"))
    if run.due_at is not None:
        facts.append(("delayed", f"until {moment(run.due_at)} ({ago(run.due_at, now)})"))
    queued, worked = queued_and_worked(run, now)
    if queued and run.kind == "workflow":
        facts.append(("queued", f"{queued}, then took {worked}" if worked else queued))
    if run.completed_at is not None:
        took = length(run.completed_at - run.created_at)
        facts.append(("ended", f"{moment(run.completed_at)} (after {took})"))
    elif run.deadline_at is not None:
        facts.append(("deadline", f"{moment(run.deadline_at)} ({ago(run.deadline_at, now)})"))
    if run.archive is not None:
        facts.append(("archived", f"in {run.archive}; `holdfast archive restore {run.run_id}`"))
    if run.wait is not None and run.wait.stuck is not None:
        facts.append(("stuck", run.wait.stuck.partition("\n")[0]))
    facts.append(("output", run.output))
    facts.append(("error", error_text(read_json(run.error)) or None))
    return [(name, value) for name, value in facts if value]


def event_line(entry: LoggedEvent, began_at: int) -> str:
    """Return an entry of a log as one line."""
    event = entry.event
    parts = [f"{entry.idx:>4}", f"+{length(event.at - began_at):<9}", f"{event.type:<23}"]
    if event.key:
        parts.append(event.key)
    if (details := shown_details(event)) and details != "null":
        parts.append(shorten(details, 120))
    return " ".join(parts)


def log_line(line: LogLine) -> str:
    """Return a line that code has logged: time, level, call, message, fields, traceback."""
    attempt = f", attempt {line.attempt}" if line.call and line.attempt > 1 else ""
    call = f"[{line.call}{attempt}] " if line.call else ""
    fields = "".join(f" {name}={value}" for name, value in line.fields.items())
    below = f"\n{line.traceback}" if line.traceback else ""
    at = line.at.astimezone().strftime("%H:%M:%S.%f")[:-3]
    return f"{at} {line.level:<8} {call}{line.message}{fields}{below}".translate(CONTROLS)


def _json(value: JSON) -> str:
    return msgspec.json.encode(value).decode()
