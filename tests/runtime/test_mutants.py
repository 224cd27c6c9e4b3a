"""Each rule of the runtime is needed: without it, some random program shows a disagreement."""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from holdfast.errors import DeterminismError
from holdfast.events import (
    APPROVAL_RESOLVED,
    CALL_COMMANDS,
    CAN_WAIT,
    COMMAND_ENDS,
    PAUSED,
    RESUMED,
    STEP_COMPLETED,
    STEP_FAILED,
    STEP_RETRY,
    TIMER_FIRED,
    TIMER_SCHEDULED,
    UPDATE_REPLIES,
    VALUE_RECORDED,
    VALUE_SET,
)
from holdfast.runtime.code.commands import Commands
from holdfast.runtime.code.instance import FACTS, Instance
from holdfast.runtime.code.steps import Call, Executions
from holdfast.runtime.code.updates import Updates
from holdfast.runtime.log import virtual_log
from holdfast.runtime.log.virtual_log import VirtualLog
from holdfast.runtime.loop import asyncio_forms
from holdfast.runtime.loop.loop import WorkflowLoop
from holdfast.runtime.loop.tasks import Scope, WorkflowTask
from holdfast.runtime.turn import refusals, turn
from holdfast.runtime.turn.replayer import Replayer
from holdfast.types import Event
from tests.runtime.programs import Program, programs_with_events
from tests.runtime.programs import programs as programs_without_events
from tests.runtime.test_random_programs import explore

pytestmark = pytest.mark.filterwarnings(
    "ignore::RuntimeWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
EXAMPLES = 500
ALL_DURABLE = 10**9

Mutant = Callable[[pytest.MonkeyPatch], None]


def two_events_in_one_drain(patch: pytest.MonkeyPatch) -> None:
    original = Instance.complete

    def complete(self: Instance, call: Call, result: str, at: int) -> None:
        together = len(self.steps.pending) > 1 and int(result) % 2 == 1
        with pytest.MonkeyPatch.context() as inner:
            if together:
                inner.setattr(WorkflowLoop, "drain", lambda self: None)
            original(self, call, result, at)

    patch.setattr(Instance, "complete", complete)


def starts_before_durable(patch: pytest.MonkeyPatch) -> None:
    original = Executions.start
    patch.setattr(Executions, "start", lambda self, steps, _: original(self, steps, ALL_DURABLE))


def cancels_before_durable(patch: pytest.MonkeyPatch) -> None:
    original = Executions.cancel
    patch.setattr(Executions, "cancel", lambda self, steps, _: original(self, steps, ALL_DURABLE))


def retries_before_durable(patch: pytest.MonkeyPatch) -> None:
    original = Executions.start_again
    patch.setattr(
        Executions,
        "start_again",
        lambda self, steps, _, now: original(self, steps, ALL_DURABLE, now),
    )


def tasks_hash_by_address(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WorkflowTask, "__hash__", asyncio.Task.__hash__)


def gatherings_hash_by_address(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(asyncio_forms, "_NUMBERED", (asyncio.Future,))
    patch.setattr(asyncio.tasks._GatheringFuture, "__hash__", object.__hash__)  # type: ignore[attr-defined]


def as_completed_by_address(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(asyncio, "as_completed", asyncio.as_completed.__wrapped__)  # type: ignore[attr-defined]


def facts_move_time(patch: pytest.MonkeyPatch) -> None:
    original = Instance.feed

    def feed(self: Instance, event: Event) -> None:
        original(self, event)
        self.loop.now = max(self.loop.now, event.at)

    patch.setattr(Instance, "feed", feed)


def conflicts_without_rebuild(patch: pytest.MonkeyPatch) -> None:
    fed = {STEP_COMPLETED, STEP_FAILED, TIMER_FIRED}
    patch.setattr(refusals, "_FACTS", refusals._FACTS | fed)
    patch.setattr(refusals, "_UNFED", refusals._UNFED | fed)


def all_due_timers_at_once(patch: pytest.MonkeyPatch) -> None:
    original = Replayer.append

    def append(self: Replayer, event: Event) -> None:
        with pytest.MonkeyPatch.context() as inner:
            if event.type == TIMER_FIRED and len(self.instance.timers.live) > 1:
                inner.setattr(WorkflowLoop, "drain", lambda self: None)
            original(self, event)

    patch.setattr(Replayer, "append", append)


def deadlines_start_again(patch: pytest.MonkeyPatch) -> None:
    patch.delitem(FACTS, TIMER_SCHEDULED)


def attempts_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.delitem(FACTS, STEP_RETRY)


def values_are_written_again(patch: pytest.MonkeyPatch) -> None:
    patch.delitem(FACTS, VALUE_SET)


def patches_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.delitem(FACTS, VALUE_RECORDED)


def commands_are_given_again(patch: pytest.MonkeyPatch) -> None:
    for kind in CALL_COMMANDS | COMMAND_ENDS:
        patch.delitem(FACTS, kind)


def updates_are_answered_again(patch: pytest.MonkeyPatch) -> None:
    for kind in UPDATE_REPLIES:
        patch.delitem(FACTS, kind)


def accepted_updates_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Updates, "answer_accepted", lambda self: None)


def commands_are_lost_in_conflicts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(refusals, "_FACTS", refusals._FACTS - CALL_COMMANDS)


def what_was_seen_is_not_said(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(virtual_log, "mark_seen", lambda event, seen: event)


def what_is_behind_is_taken_for_durable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(VirtualLog, "certain", property(lambda self: self.durable_length))


def what_is_kept_keeps_its_mark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(refusals, "without_mark", lambda event: event)


def decisions_can_wait(patch: pytest.MonkeyPatch) -> None:
    everything = CAN_WAIT | {APPROVAL_RESOLVED}
    patch.setattr(refusals, "can_wait", lambda event: event.type in everything)


def paused_code_goes_on(patch: pytest.MonkeyPatch) -> None:
    patch.delitem(Instance._OWN, PAUSED)


def held_back_events_in_one_drain(patch: pytest.MonkeyPatch) -> None:
    original = Instance.feed

    def feed(self: Instance, event: Event) -> None:
        with pytest.MonkeyPatch.context() as inner:
            if event.type == RESUMED and self.history.position % 2:
                inner.setattr(WorkflowLoop, "drain", lambda self: None)
            original(self, event)

    patch.setattr(Instance, "feed", feed)


def activities_let_go_are_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Commands, "must_stay_open", lambda self: False)


def chance_is_true_chance(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scope, "random", lambda self, seed: random.Random())


def stale_workers_go_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(turn, "is_taken_away", lambda events, lease_no: False)


def steps_do_not_wait_for_subscriptions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(VirtualLog, "bars_steps", False)


# With a seed of examples that shows soon what is missing.
MUTANTS: dict[Mutant, int] = {
    steps_do_not_wait_for_subscriptions: 0,
    two_events_in_one_drain: 14,
    starts_before_durable: 0,
    cancels_before_durable: 5,
    retries_before_durable: 0,
    tasks_hash_by_address: 0,
    gatherings_hash_by_address: 0,
    as_completed_by_address: 3,
    facts_move_time: 5,
    conflicts_without_rebuild: 0,
    all_due_timers_at_once: 0,
    deadlines_start_again: 0,
    attempts_are_forgotten: 0,
    values_are_written_again: 0,
    patches_are_forgotten: 1,
    commands_are_given_again: 0,
    updates_are_answered_again: 0,
    accepted_updates_are_forgotten: 0,
    commands_are_lost_in_conflicts: 0,
    what_was_seen_is_not_said: 0,
    what_is_behind_is_taken_for_durable: 0,
    what_is_kept_keeps_its_mark: 0,
    decisions_can_wait: 12,
    paused_code_goes_on: 1,
    held_back_events_in_one_drain: 100,
    activities_let_go_are_not_waited_for: 0,
    chance_is_true_chance: 0,
    stale_workers_go_on: 0,
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_rule_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 29. Trap 30. A rule whose loss no program shows would not be tested."""
    mutant(monkeypatch)
    with_events = mutant is steps_do_not_wait_for_subscriptions
    programs = programs_with_events if with_events else programs_without_events

    @given(programs, st.randoms(use_true_random=False))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    def run(program: Program, chance: random.Random) -> None:
        explore(program, chance, Counter())

    # By chance, or by addresses, the same example may pass the second time: Flaky.
    with pytest.raises((AssertionError, DeterminismError, Flaky)):
        seed(MUTANTS[mutant])(run)()
    gc.collect()  # what programs left behind is reported here, not in a later test
