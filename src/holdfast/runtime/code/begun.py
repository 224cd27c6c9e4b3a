"""Transactions whose record follows their commit, and that the log says have begun.

An entry says so before the first attempt: a worker may be lost between the commit and the record.
Until the log has the end, only the same call at the same place finds what was committed. Code that
does not make it has changed, as if the log had its end.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from holdfast.events import read_value_set, write_value
from holdfast.runtime.code.history import TRANSACTION, History, Recorded
from holdfast.runtime.log.virtual_log import BEGUN
from holdfast.types import Event


class _Begun(msgspec.Struct):
    """The name of a transaction, the fingerprint of its arguments, and where its result is kept."""

    name: str
    args: int
    place: str


def write_begun(key: str, name: str, args: int, place: str) -> tuple[str, str]:
    """Return the key and the details of the entry that says that a call has begun."""
    return f"{BEGUN}{key}", write_value(msgspec.json.encode(_Begun(name, args, place)).decode())


def call_begun(event: Event) -> str | None:
    """Return the key of the call that an entry says has begun, None for another entry."""
    key = event.key or ""
    return key[len(BEGUN) :] if key.startswith(BEGUN) else None


def learn_begun(history: History, key: str, event: Event) -> None:
    """Remember that a call has begun, which the code has yet to make."""
    begun = msgspec.json.decode(read_value_set(event.details or ""), type=_Begun)
    history.recorded[key] = Recorded(TRANSACTION, begun.name, begun.args, place=begun.place)


def forget_begun(history: History, keep: bool, but: Collection[str]) -> None:
    """Forget calls that another run has begun; `keep` those that its retry takes, `but` some.

    A fork is a run of its own, which begins them again.
    """
    recorded = history.recorded
    for key in [key for key, call in recorded.items() if call.family == TRANSACTION]:
        if not keep or key in but:
            del recorded[key]
