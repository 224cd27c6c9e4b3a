"""T6. Which ticks fire, and which are skipped: in time, late, after an outage, by any clock."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from holdfast.schedules.planning import PROMPT, plan_backfill, plan_firing
from holdfast.types import DueBackfill, DueSchedule, SkippedTicks, When

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
AT = 1_767_225_600 * SECOND  # a whole hour


def due(*, position: int = AT, expected: int | None = None, **fields: Any) -> DueSchedule:
    values = {"when": When(every_seconds=60), "max_missed": 1, "catch_up_seconds": 86_400.0}
    return DueSchedule(
        name="shop/n", revision=1, position=position, expected=expected, **(values | fields)
    )


def test_a_new_schedule_is_computed_and_does_not_fire() -> None:
    plan = plan_firing(due(), AT + 5)
    assert (plan.ticks, plan.position, plan.next_tick_at) == ((), AT, AT + MINUTE)


def test_a_tick_that_comes_fires_at_its_moment() -> None:
    """It is computed ahead."""
    plan = plan_firing(due(expected=AT + MINUTE), AT + MINUTE - SECOND)
    assert plan.ticks == [AT + MINUTE]
    assert (plan.position, plan.next_tick_at) == (AT + MINUTE, AT + 2 * MINUTE)


def test_a_clock_that_goes_back_repeats_nothing() -> None:
    """The tick waits until its moment comes again."""
    plan = plan_firing(due(expected=AT + MINUTE), AT - 5 * HOUR)
    assert (plan.ticks, plan.position) == ([AT + MINUTE], AT + MINUTE)


def test_a_schedule_that_is_over_has_no_next_tick() -> None:
    over = When(every_seconds=60, ends_at=AT + MINUTE)
    plan = plan_firing(due(when=over, expected=AT + MINUTE), AT + MINUTE)
    assert (plan.ticks, plan.next_tick_at) == ([AT + MINUTE], None)


def test_ticks_that_are_a_little_late_all_fire() -> None:
    each_second = When(every_seconds=1)
    plan = plan_firing(due(when=each_second, expected=AT + SECOND, max_missed=0), AT + 5 * SECOND)
    assert plan.ticks == [AT + n * SECOND for n in range(1, 6)]
    assert plan.skipped == ()


def test_after_an_outage_the_last_missed_tick_fires() -> None:
    plan = plan_firing(due(expected=AT + MINUTE), AT + 4 * MINUTE + 30 * SECOND)
    assert plan.ticks == [AT + 4 * MINUTE]
    assert plan.skipped == [
        SkippedTicks(AT + n * MINUTE, AT + n * MINUTE, 1, "too_many") for n in (1, 2, 3)
    ]
    assert plan.next_tick_at == AT + 5 * MINUTE


def test_so_many_missed_ticks_fire_as_are_wanted() -> None:
    late = AT + 4 * MINUTE + 30 * SECOND
    plan = plan_firing(due(expected=AT + MINUTE, max_missed=3), late)
    assert plan.ticks == [AT + n * MINUTE for n in (2, 3, 4)]
    assert [gap.first for gap in plan.skipped] == [AT + MINUTE]
    none = plan_firing(due(expected=AT + MINUTE, max_missed=0), late)
    assert (list(none.ticks), len(none.skipped)) == ([], 4)


def test_no_missed_tick_fires_if_none_is_wanted_also_at_the_last_moment_that_is_late() -> None:
    late = due(expected=AT + MINUTE, max_missed=0)
    plan = plan_firing(late, AT + MINUTE + PROMPT + 1)
    assert (list(plan.ticks), plan.next_tick_at) == ([], AT + 2 * MINUTE)
    assert plan.skipped == [SkippedTicks(AT + MINUTE, AT + MINUTE, 1, "too_many")]


def test_ticks_before_the_window_are_too_late() -> None:
    plan = plan_firing(
        due(expected=AT + MINUTE, max_missed=9, catch_up_seconds=90), AT + 4 * MINUTE
    )
    assert plan.ticks == [AT + 3 * MINUTE, AT + 4 * MINUTE]
    assert [(gap.first, gap.cause) for gap in plan.skipped] == [
        (AT + MINUTE, "too_late"),
        (AT + 2 * MINUTE, "too_late"),
    ]


def test_many_skipped_ticks_are_one_range() -> None:
    plan = plan_firing(due(expected=AT + MINUTE), AT + 10 * HOUR + 30 * SECOND)
    [gap] = plan.skipped
    assert gap == SkippedTicks(AT + MINUTE, AT + 10 * HOUR - MINUTE, 599, "too_many")
    assert plan.ticks == [AT + 10 * HOUR]


def test_after_years_the_skipped_ticks_are_not_counted() -> None:
    """Nor are they looked at one by one."""
    now = AT + 30 * 365 * 24 * HOUR
    plan = plan_firing(due(when=When(every_seconds=1), expected=AT + SECOND), now)
    assert [(gap.count, gap.cause) for gap in plan.skipped] == [
        (None, "too_late"),
        (None, "too_many"),
    ]
    assert plan.skipped[0].first == AT + SECOND
    assert plan.skipped[0].last + SECOND == plan.skipped[1].first
    assert plan.skipped[1].last + SECOND == plan.ticks[0]
    assert plan.ticks[-1] == now


def test_what_cannot_be_computed_is_an_error() -> None:
    for wrong in (When(cron="at dawn"), When(cron="0 0 * * *", timezone="Mars/Base"), When()):
        plan = plan_firing(due(when=wrong), AT)
        assert plan.error
        assert (plan.ticks, plan.position) == ((), AT)


def test_a_backfill_goes_in_parts() -> None:
    backfill = DueBackfill(
        backfill_id=UUID(int=1),
        schedule="shop/n",
        when=When(every_seconds=60),
        position=AT - 1,
        until=AT + 60 * MINUTE,
    )
    plan = plan_backfill(backfill)
    assert list(plan.ticks) == [AT + n * MINUTE for n in range(50)]
    assert plan.new_position == AT + 49 * MINUTE
