"""What a database refuses to store: the model refuses it, too."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.errors import PayloadError
from holdfast.types import (
    PRIORITIES,
    ActivityEnd,
    Decision,
    Event,
    Finish,
    Fork,
    NewRun,
    NewSignal,
    TurnCommit,
)


def check_run(run: NewRun) -> None:
    """Raise PayloadError where a run to start has a value that cannot be stored."""
    if run.priority not in PRIORITIES:
        raise PayloadError(f"priority {run.priority} is outside 0 to 4")
    _check_texts([run.name, run.key, run.queue, *run.tags])
    _check_json(run.input)


def check_signal(signal: NewSignal) -> None:
    """Raise PayloadError where a signal has a value that cannot be stored."""
    _check_texts([signal.name, signal.signal_id])
    _check_json(signal.payload)


def check_end(end: ActivityEnd) -> None:
    """Raise PayloadError where an activity's end has a value that cannot be stored."""
    for text in (end.result, end.error, end.details):
        _check_json(text)


def check_decision(decision: Decision) -> None:
    """Raise PayloadError where a decision has a value that cannot be stored."""
    _check_texts([decision.decision_id, decision.by, decision.feedback])
    _check_json(decision.values)


def check_fork(fork: Fork) -> None:
    """Raise PayloadError where a fork has a value that cannot be stored."""
    _check_json(fork.input)
    for key, text in fork.results.items():
        _check_texts([key])
        _check_json(text)


def check_turn(turn: TurnCommit) -> None:
    """Raise PayloadError where a turn's part has a value that cannot be stored."""
    for event in turn.events:
        _check_event(event)
    if isinstance(turn.then, Finish):
        _check_finish(turn.then)


def _check_event(event: Event) -> None:
    _check_texts([event.type, event.key])
    _check_json(event.details)


def _check_finish(finish: Finish) -> None:
    if finish.output is not None and finish.status not in ("completed", "continued"):
        raise PayloadError(f"a run that ends {finish.status} has no output")
    if finish.error is not None and finish.status != "failed":
        raise PayloadError(f"a run that ends {finish.status} has no error")
    _check_json(finish.output)
    _check_json(finish.error)


def _check_texts(texts: Iterable[str | None]) -> None:
    for text in texts:
        if text is not None and ("\0" in text or not _is_unicode(text)):
            raise PayloadError(f"{text!r} holds what no database text can hold")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_json(text: str | None) -> None:
    if text is None:
        return
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise PayloadError(f"not JSON: {error}") from error
