"""The options that say which runs are meant, of `runs list` and of what acts on many."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar, cast

import click

from holdfast.cli.inputs import past_moment, read_json

if TYPE_CHECKING:
    from holdfast.client.filters import RunFilters

F = TypeVar("F", bound=Callable[..., object])

_NAMES = {
    "states": "states",
    "workflows": "names",
    "queues": "queues",
    "tags": "tags",
    "key": "key",
    "parent": "parent",
    "since": "since",
    "until": "until",
}
_OPTIONS = (
    click.option(
        "--state",
        "states",
        multiple=True,
        help="queued, running, waiting, stuck, paused, completed, failed, cancelled, timed_out, "
        "terminated or continued.",
    ),
    click.option("--workflow", "workflows", multiple=True, help="Runs of this workflow."),
    click.option("--queue", "queues", multiple=True, help="Runs of this queue."),
    click.option("--tag", "tags", multiple=True, help="Runs with this tag; repeated: with all."),
    click.option("--key", help="The run that was started with this key."),
    click.option("--parent", metavar="RUN", help="Runs that this run started."),
    click.option(
        "--since",
        metavar="MOMENT",
        type=past_moment,
        help="Created then or later: 2030-01-31, 2h.",
    ),
    click.option("--until", metavar="MOMENT", type=past_moment, help="Created before."),
    click.option("--input", "contains", help="Runs whose input contains this JSON."),
)


def filter_options(fn: F) -> F:
    """Add the options to a command; `read_filters` makes filters of what they give."""
    for option in reversed(_OPTIONS):
        fn = option(fn)
    return fn


def read_filters(options: dict[str, object]) -> RunFilters:
    """Take the filters out of a command's options. Empty where none was given.

    `parent` is as the command line has it; `finding.find_parent` makes an id of it.
    """
    from holdfast.cli.console import decoded

    given: Mapping[str, object] = {name: options.pop(option) for option, name in _NAMES.items()}
    filters = {name: value for name, value in given.items() if value not in (None, ())}
    contains = options.pop("contains")
    if contains is not None:
        filters["input_contains"] = decoded(read_json(str(contains), "input to look for"))
    return cast("RunFilters", filters)
