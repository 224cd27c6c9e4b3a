"""Random changes of code under runs: nothing is done twice, left out, or ended by a mistake.

A1. A3. A4. HOLDFAST_CHANGES is how many programs are tried, from the seed HOLDFAST_CHANGES_FROM.
"""

from __future__ import annotations

import gc
import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from random import Random

import pytest

from holdfast.codec import fingerprint
from holdfast.errors import DeterminismError
from holdfast.events import (
    APPROVAL_WITHDRAWN,
    CALL_COMMANDS,
    CANCEL_REQUESTED,
    EXTERNAL,
    STEP_COMPLETED,
    STEP_FAILED,
    read_step,
)
from holdfast.runtime.code.steps import Call
from holdfast.runtime.turn.rehearsal import rehearse
from holdfast.runtime.turn.turn import Effects, State, Turn
from holdfast.types import Event, TurnCommit
from tests.runtime.changes import Block, Maker, result_of, workflow
from tests.runtime.outside import Outside
from tests.runtime.world import INFO, NEVER, World

pytestmark = pytest.mark.filterwarnings(
    "ignore::RuntimeWarning",  # programs leave coroutines unawaited when they are closed half-way
    "ignore::pytest.PytestUnraisableExceptionWarning",
)
CASES = int(os.environ.get("HOLDFAST_CHANGES", "600"))
FIRST = int(os.environ.get("HOLDFAST_CHANGES_FROM", "0"))
EQUIVALENT = ("pure", "extract")
CAREFUL = ("patch", "append")
EDITS = (
    *("insert", "remove", "replace", "rename", "rename_all", "rename_function", "argument"),
    *("length", "reorder", "swap", "into_task", "into_gather", "out_of_gather", "wrap", "unwrap"),
    *("bug", "bug", "bug"),
    "alias",  # may be stuck: a call that has no end in the log does not count for its number
)
_WORK = re.compile(r"w\d+\.[iu\d]*")


class Ends(Outside):
    """The outside, whose results say which call they are of."""

    def end(self) -> Event:
        found = super().end()
        key = found.key or ""
        details = json.loads(found.details or "")
        work = self.world.works[key]
        for field in ("result", "output"):
            if field in details:
                details[field] = result_of(work)
        return Event(found.type, key, json.dumps(details), found.at)

    def carry_out(self, part: TurnCommit) -> None:
        for event in part.events:
            if event.type in CALL_COMMANDS and (work := _WORK.search(event.details or "")):
                self.world.works[event.key or ""] = work[0]
            elif event.type == APPROVAL_WITHDRAWN and event.key in self.ordered:
                # Changed code may withdraw what was decided before the code came to it.
                self.open.setdefault(event.key, event)
        super().carry_out(part)


class Deployed(World):
    """A world whose code is replaced; `stuck` is why the code of now cannot continue."""

    def __init__(self, program: Block, chance: Random) -> None:
        self.program = program
        self.runs: list[list[str]] = []
        self.wrong: list[str] = []
        self.works: dict[str, str] = {}
        self.stuck: DeterminismError | None = None
        super().__init__(
            lambda: workflow(self.program, self.runs, self.wrong), chance.randrange, max_actions=0
        )
        self.outside = Ends(self)

    def deploy(self, program: Block) -> None:
        """Replace the code: every worker is a new process."""
        self.stuck = None
        if self.active:
            self.on_crash()
        self.let_go()
        for turn in self.cached:
            turn.abandon()
        self.cached.clear()
        self.program = program
        if self.end is None:
            self.claim_at = self.now

    def follow(self, effects: Effects) -> None:
        if effects.state is State.STUCK:
            assert isinstance(effects.error, DeterminismError), effects.error
            self.stuck = effects.error
            self.let_go()
            self.claim_at = NEVER
            return
        super().follow(effects)

    def check_start(self, turn: Turn, call: Call) -> None:
        work = json.loads(call.arguments)[0]
        again = [each for each in self.recorded(turn) if each == work]
        assert not again, f"{work} is done again, as {call.key}"
        super().check_start(turn, call)

    def checked(self) -> str:
        """Return what a check says of the code of now."""
        found = rehearse(self.factory(), INFO, self.log)
        return "silent" if found is None else found.kind

    def recorded(self, turn: Turn | None = None) -> list[str]:
        """Return the work of which the log says that it was done."""
        log = list(self.log)
        if turn is not None:
            log += turn._replayer.log.fresh
        return list(self._recorded(log))

    def _recorded(self, log: Iterable[Event]) -> Iterable[str]:
        for event in log:
            if event.type in (STEP_COMPLETED, STEP_FAILED):
                yield self.works[f"#{read_step(event.details or '').args}"]
            elif event.type in CALL_COMMANDS and (work := _WORK.search(event.details or "")):
                yield work[0]

    def on_result(self) -> None:
        turn, call = self.pop_running()
        self.follow(turn.step_completed(call.key, str(result_of(self.note(call))), self.now))

    def on_fail(self) -> None:
        for call in self.running.values():
            self.note(call)
        super().on_fail() if self.pick(4) == 0 else self.on_result()

    def note(self, call: Call) -> str:
        work: str = json.loads(call.arguments)[0]
        self.works[f"#{fingerprint(call.arguments)}"] = work
        return work

    def some(self, actions: int) -> None:
        """Let things happen; stop if the run is stuck or has ended."""
        self.max_actions = self.count + actions
        if self.turn is None and self.claim_at <= self.now:
            self.claim()
        for _ in range(actions):
            if self.end is None and self.stuck is None:
                options = self.options()
                self.act(options[self.pick(len(options))])

    def rest(self) -> None:
        """Let the run come to its end, or be stuck."""
        for _ in range(1000):
            if self.end is None and self.stuck is None:
                self.push()

    def check(self) -> None:
        """Whatever the change was: nothing was done twice, left out, or ended by a mistake."""
        assert not self.wrong, self.wrong
        recorded = Counter(self.recorded())
        assert all(count == 1 for count in recorded.values()), f"done twice: {recorded}"
        if self.stuck is not None:
            text = str(self.stuck)
            assert "the code has changed under this run" in text or "waits for nothing" in text
            assert "roll" in text or "waits for nothing" in text, text
        if self.end is not None and not self.is_cancelled:
            self.runs.clear()
            self.replay(self.log)
            left = recorded.keys() - set(self.runs[-1])
            assert not left, f"the run has {self.end} without {left}"

    @property
    def is_cancelled(self) -> bool:
        return any(event.type == CANCEL_REQUESTED for event in self.log)


def explore(seed: int, seen: Counter[str]) -> None:
    """Run a program, change it, and perhaps roll it back."""
    chance = Random(seed)
    maker = Maker(chance)
    program = maker.program()
    world = Deployed(program, chance)
    try:
        world.some(chance.randint(1, 40))
        assert world.stuck is None, f"stuck without a change: {world.stuck}"
        assert world.checked() in ("silent", "fails"), "a check of the same code finds something"
        if world.end is not None:
            seen["ended before"] += 1
            return
        edit = chance.choice(EDITS if chance.random() < 0.7 else EQUIVALENT + CAREFUL)
        changed = maker.change(program, edit)
        if changed == program:
            return
        seen[edit] += 1
        world.deploy(changed)
        if world.end is None:
            check(world, edit, seen)
            before = len(world.log)
            if attempt(world, chance, edit, seen) and world.end is None:
                world.deploy(program)
                if world.end is None:
                    roll_back(world, edit, world.log[before:], seen)
    finally:
        world.close()


def check(world: Deployed, edit: str, seen: Counter[str]) -> None:
    """Compare what a check says with what the worker does that claims the run."""
    kind = world.checked()
    assert kind in ("silent", "fails") or edit not in EQUIVALENT + CAREFUL, (kind, edit)
    world.some(0)
    seen[f"a check is {kind}, and the run {'is stuck' if world.stuck else 'continues'}"] += 1
    if world.stuck is not None:
        assert kind == "stuck", world.stuck


def attempt(world: Deployed, chance: Random, edit: str, seen: Counter[str]) -> bool:
    """Let the changed code run. Returns False if it can never move again."""
    try:
        world.some(chance.randint(1, 40))
        if chance.random() < 0.6:
            world.rest()
    except AssertionError as error:
        if "nothing moves" in str(error):
            seen["waits for ever"] += 1
            return False
        raise
    seen[f"{'stuck' if world.stuck else world.end} after {edit}"] += 1
    world.check()
    if edit in EQUIVALENT + CAREFUL:
        assert world.stuck is None, f"stuck by {edit}: {world.stuck}"
    return True


def roll_back(world: Deployed, edit: str, written: list[Event], seen: Counter[str]) -> None:
    """Let the old code run again: if the new code has written nothing, it continues."""
    is_clean = edit in EQUIVALENT or all(event.type in EXTERNAL for event in written)
    try:
        world.rest()
    except AssertionError as error:
        if "nothing moves" not in str(error):
            raise
    world.check()
    seen[f"rolled back, {'clean' if is_clean else 'after progress'}: {world.stuck is None}"] += 1
    if is_clean:
        assert world.stuck is None, f"a roll-back of {edit} does not heal: {world.stuck}"


@pytest.mark.timeout(600)
def test_changed_code_repeats_nothing_and_ends_nothing_by_mistake() -> None:
    seen: Counter[str] = Counter()
    for seed in range(FIRST, FIRST + CASES):
        explore(seed, seen)
    gc.collect()
    if CASES >= 600:
        healed = seen["rolled back, clean: True"]
        assert min(healed, seen["rolled back, after progress: True"]) > CASES // 20, seen
        for edit in (*EDITS, *EQUIVALENT, *CAREFUL):
            assert seen[edit] > CASES // 600, (edit, seen)
        for way in ("stuck", "completed", "failed"):
            found = sum(seen[f"{way} after {edit}"] for edit in set(EDITS))
            assert found > CASES // 20, (way, seen)
        assert seen["stuck after bug"] > CASES // 400, seen
        assert seen["a check is stuck, and the run is stuck"] > CASES // 40, seen
