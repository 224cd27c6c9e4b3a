"""Transactions whose record follows their commit, and that the log says have begun.

An entry says so before the first attempt: a worker may be lost between the commit and the record.
Until the log has the end, only the same call at the same place finds what was committed. Code that
does not make it has changed, as if the log had its end.
"""

from __future__ import annotations

import msgspec

from holdfast.details import Forked
from holdfast.events import read_value_set, write_value
from holdfast.runtime.code.history import TRANSACTION, History, Recorded
from holdfast.runtime.log.virtual_log import BEGUN
from holdfast.types import Event


class _Begun(msgspec.Struct, omit_defaults=True):
    """The name of a transaction, the fingerprint of its arguments, and where its result is kept.

    `told` are the failed calls of which the code had been told, None where earlier releases began.
    """

    name: str
    args: int
    place: str
    told: tuple[str, ...] | None = None


def write_begun(
    key: str, name: str, args: int, place: str, told: tuple[str, ...]
) -> tuple[str, str]:
    """Return the key and the details of the entry that says that a call has begun."""
    begun = _Begun(name, args, place, told)
    return f"{BEGUN}{key}", write_value(msgspec.json.encode(begun).decode())


def call_begun(event: Event) -> str | None:
    """Return the key of the call that an entry says has begun, None for another entry."""
    key = event.key or ""
    return key[len(BEGUN) :] if key.startswith(BEGUN) else None


def learn_begun(history: History, key: str, event: Event) -> None:
    """Remember that a call has begun, which the code has yet to make."""
    begun = msgspec.json.decode(read_value_set(event.details or ""), type=_Begun)
    history.recorded[key] = Recorded(
        TRANSACTION, begun.name, begun.args, place=begun.place, told=begun.told
    )


def forget_begun(history: History, fork: Forked) -> set[str]:
    """Forget calls that another run has begun; return those that code makes before new ones.

    A fork is a run of its own, which begins them again. A retry takes what it does not make again.
    Its code makes a call for certain if, when that began, the code had been told of nothing that
    the retry leaves out.
    """
    recorded, found = history.recorded, set[str]()
    made_again = {*(fork.again or ()), *history.again}
    for key in [key for key, call in recorded.items() if call.family == TRANSACTION]:
        told = recorded[key].told
        if fork.after is not None and key not in made_again and key not in fork.after:
            if told is None:
                continue
            if not told if fork.again is None else made_again.isdisjoint(told):
                found.add(key)
                continue
            if fork.again is not None:
                continue
        del recorded[key]
    return found
