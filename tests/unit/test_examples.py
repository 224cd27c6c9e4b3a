"""Tests of generated examples: whether one fails depends on the code alone."""

from __future__ import annotations

import time

from hypothesis import given, settings
from hypothesis import strategies as st


@settings(max_examples=2)
@given(st.integers())
def test_an_example_may_take_longer_than_usual(number: int) -> None:
    time.sleep(0.25 if number == 0 else 0)


def test_examples_are_the_same_each_time() -> None:
    def generated() -> list[int]:
        seen: list[int] = []

        @settings(max_examples=20)
        @given(st.integers())
        def see(number: int) -> None:
            seen.append(number)

        see()
        return seen

    assert generated() == generated()
