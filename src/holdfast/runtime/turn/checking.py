"""Checks that find code that is not deterministic, in tests and in development."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, Literal, TypeAlias

from holdfast.definitions.workflows import Workflow
from holdfast.errors import DeterminismError
from holdfast.events import CALL_COMMANDS, VALUE_RECORDED, VALUE_SET
from holdfast.runtime.code.instance import Instance
from holdfast.runtime.code.run import RunInfo
from holdfast.runtime.loop.loop import WorkflowLoop
from holdfast.runtime.loop.watch import Watch
from holdfast.types import Event

Check: TypeAlias = Literal["no", "warn", "refuse"]

_WRITTEN: Final = CALL_COMMANDS | {VALUE_RECORDED, VALUE_SET}


def watch(loop: WorkflowLoop, *, refuse: bool) -> None:
    """Look for calls of clocks and random numbers in a run's code.

    With `refuse` such a call makes the run stuck, otherwise it is a warning.
    """

    def tell(problem: str) -> None:
        if refuse:
            loop.broken = loop.broken or DeterminismError(problem)
        elif problem not in loop.problems:
            loop.problems.append(problem)

    loop.watch = Watch(tell)


def replay_to_end(
    workflow: Workflow[Any, object], info: RunInfo, log: Sequence[Event], unused: Collection[str]
) -> None:
    """Replay the log of code that has ended, and compare.

    `unused` are recorded calls that the code has not made: the replay need not make them either.
    Raises DeterminismError if the replay does not end, or does not make the same calls.
    """
    written: list[str] = []

    def note(kind: str, key: str, text: str | None) -> None:
        if kind in _WRITTEN:
            written.append(key)

    again = Instance(workflow, info, note)
    again.history.live_from = again.history.length = len(log)  # so that its logger is silent
    try:
        if len(log) > 1:
            again.foresee(log)
        for event in log:
            again.feed(event)
        if difference := _difference(again, written, unused):
            raise DeterminismError(
                f"a replay of the run differs from what it has done: {difference}; workflow code "
                "must do the same on each replay"
            )
    finally:
        again.close()


def _difference(again: Instance, written: Sequence[str], unused: Collection[str]) -> str | None:
    if missing := [key for key in again.history.unused() if key not in unused]:
        return f"it does not call {', '.join(missing)}"
    if written:
        return f"it calls {', '.join(written)} besides"
    if not again.loop.ended:
        return (
            f"it does not end, and waits for {', '.join(again.steps.pending) or 'something else'}"
        )
    return None
