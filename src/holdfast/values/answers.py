"""Ids of the signals that answer calls of entities: which call is answered, and if it failed."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from holdfast.values.texts import short_id

_answer: Final = re.compile(r"(answer|failed)/([0-9a-f-]{36})(?:@(\d+))?/(.+)", re.DOTALL)


def key_of(call_id: str) -> str:
    """Return the key of a call in the log of the run that has sent it, as in `sent_id`."""
    return call_id.partition("/")[2]


def answer_id(call_id: str, *, failed: bool) -> str:
    """Return the id of the signal that answers a call. A call is answered once."""
    # `answered_call` does not know the call of a hash.
    return short_id(f"{'failed' if failed else 'answer'}/{call_id}")


class Answered(NamedTuple):
    """A call that a signal answers: the run that has made it, and the key of the call there.

    `began` is when that run began, in microseconds since 1970. It is None if the id is from before
    ids of calls said it.
    """

    run_id: str
    began: int | None
    key: str
    failed: bool


def answered_call(signal_id: str | None) -> Answered | None:
    """Return which call a signal answers; None for any other signal, and for an id too long."""
    found = _answer.fullmatch(signal_id or "")
    if found is None:
        return None
    kind, run_id, began, key = found.groups()
    return Answered(run_id, None if began is None else int(began), key, kind == "failed")


def looked_up(key: str) -> str:
    """Return the key of the step that looks for the answer to a call."""
    path, _, leaf = key.rpartition("/")
    name, mark, number = leaf.partition("#")
    leaf = f"{name}.answer{mark}{number}"
    return f"{path}/{leaf}" if path else leaf
