"""Compare what a run's log says with what the outside world saw."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from holdfast.demo.ledger import Entry
from holdfast.types import Event


class _Completed(msgspec.Struct):
    result: str


@dataclass(frozen=True, slots=True)
class Proof:
    """One step: how often it was recorded in the log, asked for, and carried out."""

    step: str
    recorded: int
    asked: int
    happened: int
    agrees: bool  # the result in the log is the receipt of the effect

    @property
    def holds(self) -> bool:
        """True if the effect happened once, as recorded."""
        return self.recorded == self.happened == 1 and self.agrees

    @property
    def interrupted(self) -> int:
        """How many attempts were cut off by the kill: asked for, and not recorded."""
        return self.asked - self.recorded


def prove(log: Iterable[Event], ledger: Sequence[Entry]) -> list[Proof]:
    """Return a comparison for each step, in the order in which the outside world was asked."""
    results: dict[str, list[str]] = {}
    for event in log:
        if event.type == "StepCompleted" and event.key and event.details:
            completed = msgspec.json.decode(event.details, type=_Completed)
            results.setdefault(event.key, []).append(completed.result)
    steps = dict.fromkeys([entry.step for entry in ledger] + list(results))
    return [_compare(step, results.get(step, []), ledger) for step in steps]


def _compare(step: str, results: Sequence[str], ledger: Sequence[Entry]) -> Proof:
    asked = [entry for entry in ledger if entry.step == step and entry.kind == "asked"]
    happened = [entry for entry in ledger if entry.step == step and entry.kind == "happened"]
    agrees = list(results) == [entry.receipt for entry in happened]
    return Proof(step, len(results), len(asked), len(happened), agrees)
