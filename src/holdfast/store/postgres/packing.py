"""The texts of calls, and long arrays as one text each, which the server splits.

asyncpg looks at each element of an array, if it is an array itself: that takes longer than all else
that a call costs. A text is joined here and split by the server faster than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final, TypeAlias

from holdfast.store.port.shards import KnownShards

Packing: TypeAlias = tuple[tuple[int, str], ...]
"""Which arguments of a call are packed, from 0, and the types of their elements."""

LEAST: Final = 8  # elements; fewer are sent as they are
_SEPARATOR, _NULL = "\x1f", "\x1e"


def pack(arguments: Sequence[Any], packing: Packing) -> list[Any] | None:
    """Return the arguments with texts in place of the arrays that the packing names.

    None if an element has one of the characters that separate them.
    """
    packed = list(arguments)
    for position, kind in packing:
        values = arguments[position]
        if kind in ("text", "json"):
            text = _join(values)
        elif kind == "uuid":
            text = f"{{{','.join(map(str, values))}}}"
        else:
            text = f"{{{str(values)[1:-1]}}}"
        if text is None:
            return None
        packed[position] = text
    return packed


def _join(values: list[Any]) -> str | None:
    nulls = values.count(None)
    texts = [_NULL if value is None else value for value in values] if nulls else values
    text = _SEPARATOR.join(texts)
    if not text:  # the server makes an array without elements of it
        return None if values else text
    whole = text.count(_SEPARATOR) == len(values) - 1 and text.count(_NULL) == nulls
    return text if whole else None


def unpacked(mark: str, kind: str) -> str:
    """Return the SQL expression that makes an array of a packed parameter again.

    >>> unpacked("$1", "bigint")
    'cast(cast($1 as text) as bigint[])'
    """
    if kind not in ("text", "json"):
        return f"cast(cast({mark} as text) as {kind}[])"
    split = f"pg_catalog.string_to_array({mark}, chr({ord(_SEPARATOR)}), chr({ord(_NULL)}))"
    return split if kind == "text" else f"cast({split} as json[])"


@cache
def call_text(
    schema: str,
    function: str,
    count: int,
    packing: Packing = (),
    millis: int | None = None,
    known: KnownShards | None = None,
) -> str:
    """Return the text of a call with numbered parameters, some of which may be packed.

    It waits so long for each lock, and is refused if its caller does not know the shards.
    Both are within the statement, for its transaction: no round trip is added, and a pooler may be
    in between. As conditions without a row they are computed before the call; a join costs more.

    >>> call_text("holdfast", "waits", 2)
    'select * from "holdfast".waits($1, $2)'
    """
    marks = [f"${number}" for number in range(1, count + 1)]
    for position, kind in packing:
        marks[position] = unpacked(marks[position], kind)
    limit = f"(select pg_catalog.set_config('lock_timeout', '{millis}ms', true))"
    conditions = [] if millis is None else [f"{limit} is not null"]
    if known is not None:
        conditions.append(f"(select \"{schema}\"._knows_shards({known.changes}, '{known.ruled}'))")
    condition = " where " + " and ".join(conditions) if conditions else ""
    return f'select * from "{schema}".{function}({", ".join(marks)}){condition}'
