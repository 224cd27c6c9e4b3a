"""Which points `crash_everywhere(most=…)` takes of many."""

from __future__ import annotations

from holdfast.testing.crashes import (
    Point,
    _spread,  # pyright: ignore[reportPrivateUsage]
)


def points() -> list[Point]:
    """Return those of a run with many steps, and one entry each of other kinds among them."""
    names = [f"shop/once: StepCompleted pay#{n}" for n in range(2, 60)]
    names[7] = "shop/once: ApprovalRequested refund"
    names[8] = "shop/once: TimerStarted sleep"
    names[9] = "shop/once: StepCompleted once/ship"
    found = [Point(call, kept, what) for call, what in enumerate(names) for kept in (0, 1)]
    return [each for each in found if each.kept or "StepCompleted" in each.what]


def test_each_kind_of_entry_has_a_point_however_few_there_are() -> None:
    chosen = _spread(points(), 5)
    assert len(chosen) == 5
    kinds = {(each.kept, each.what.split()[1]) for each in chosen}
    assert kinds == {
        (0, "StepCompleted"),
        (1, "StepCompleted"),
        (1, "ApprovalRequested"),
        (1, "TimerStarted"),
    }


def test_each_call_has_a_point_and_the_others_are_spread_over_the_run() -> None:
    chosen = _spread(points(), 12)
    assert len(chosen) == 12
    assert {each.kept for each in chosen if each.what.endswith("once/ship")} == {0, 1}
    assert chosen == sorted(chosen, key=lambda each: (each.call, each.kept))
    assert chosen[0].call == 0
    assert chosen[-1].call == 57


def test_fewer_points_than_kinds_are_spread_over_the_kinds() -> None:
    [first] = _spread(points(), 1)
    assert first.call == 0
    assert _spread(points()[:3], 5) == points()[:3]
