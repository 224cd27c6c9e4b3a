"""Make values of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import asyncpg
import msgspec

from holdfast.types import Event, Value

V = TypeVar("V", bound=Value)


def reader(kind: type[V], /, *given: str, **columns: str) -> Callable[..., V]:
    """Return a function that makes a value of a row: each field of the column of its name.

    `columns` are fields whose columns have other names, `given` those that the function is given
    as arguments. It is compiled, as a dataclass's `__init__` is: a loop over the fields would take
    three times as long.

    ```python
    read_bucket = reader(Bucket)
    read_tasks = reader(OpenStepTasks, step="step_slug", index="task_index")
    read_message = reader(KeptMessage, "headers", group="group_key")
    read_message(row, headers=read_headers(row["headers"]))
    ```
    """
    fields = (
        f"{name}={name}" if name in given else f"{name}=row[{columns.get(name, name)!r}]"
        for name in kind.__struct_fields__
    )
    text = f"lambda {', '.join(('row', *given))}: kind({', '.join(fields)})"
    made: Callable[..., V] = eval(text, {"kind": kind})
    return made


def read_event(row: asyncpg.Record) -> Event:
    return Event(row["event_type"], row["key"], row["details"], row["at"])


def json_text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def join_results(results: Mapping[str, str]) -> str | None:
    """Return JSON texts by name as one JSON object; None if there are none."""
    if not results:
        return None
    raw = {name: msgspec.Raw(text.encode()) for name, text in results.items()}
    return json_text(raw)
