"""What a start does if the run of its key has ended: return it, start another run, or refuse."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, get_args
from uuid import UUID

import msgspec

from holdfast.client.chains import search_newest
from holdfast.client.session import Session
from holdfast.errors import ConfigurationError, RunEnded
from holdfast.types import IfEnded, NewRun, RulesOfStart, StartedRun
from holdfast.values.ids import retry_run_id

_read_rules: Final = msgspec.json.Decoder(RulesOfStart).decode


def check_if_ended(if_ended: IfEnded, runs: Sequence[NewRun]) -> None:
    """Raise ConfigurationError if these starts cannot have the option."""
    if if_ended not in get_args(IfEnded):
        known = ", ".join(map(repr, get_args(IfEnded)))
        raise ConfigurationError(f"if_ended is one of {known}, not {if_ended!r}")
    if if_ended != "return" and any(run.key is None for run in runs):
        raise ConfigurationError("if_ended says what a used key does: give the start a key")
    if if_ended == "start" and any(run.kind == "flow" for run in runs):
        raise ConfigurationError(
            'if_ended="start" is for workflows and jobs: give the run of a flow another key'
        )


async def start_ended(
    session: Session,
    runs: Sequence[NewRun],
    answers: Sequence[StartedRun],
    if_ended: IfEnded,
    submit: Callable[[Sequence[NewRun]], Awaitable[Sequence[StartedRun]]],
) -> Sequence[StartedRun]:
    """Return the answers, with other runs for those starts whose key's run has ended.

    The id of a key's next run is made from the one that ended, as that of a retry: so of several
    starts, and of a retry, the first one makes the run, and the others find it. Raises RunEnded.
    """
    found = list(answers)
    pending = [at for at, each in enumerate(found) if _has_ended(each)]
    while pending:
        newest, records = await search_newest(session.store, {found[at].run_id for at in pending})
        if unread := list(set(newest.values()) - records.keys()):
            records |= await session.store.get_runs(unread, payloads=False)
        again: dict[int, NewRun] = {}
        for at in pending:
            last = records.get(newest[found[at].run_id])
            if last is None:  # it was deleted meanwhile, so the key is free
                again[at] = runs[at]
            elif last.status == "running":
                found[at] = StartedRun(last.run_id, False, last.status)
            elif if_ended == "refuse":
                raise RunEnded(last.run_id, last.status)
            else:
                again[at] = _next_of_key(runs[at], last.run_id)
        started = await submit(list(again.values())) if again else ()
        pending = list[int]()
        for (at, new), answer in zip(again.items(), started, strict=True):
            found[at] = answer
            # A next run that is there was started by another call meanwhile: both mean this run,
            # although it may have ended since.
            if answer.refused == "gone" or (new is runs[at] and _has_ended(answer)):
                pending.append(at)
    return found


def _has_ended(started: StartedRun) -> bool:
    return started.refused is None and not started.created and started.status != "running"


def _next_of_key(run: NewRun, last: UUID) -> NewRun:
    """Return the run that takes the key of one that has ended."""
    rules = RulesOfStart() if run.rules is None else _read_rules(run.rules)
    text = msgspec.json.encode(msgspec.structs.replace(rules, after=last)).decode()
    return msgspec.structs.replace(run, run_id=retry_run_id(last), rules=text)
