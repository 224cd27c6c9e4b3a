"""Options of maps: how many elements may fail, and how many are under way at once."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import App
from holdfast.definitions import Flow
from holdfast.errors import ConfigurationError
from holdfast.flows import differences


@pytest.fixture
def flow() -> Flow[list[str]]:
    return App("tests").flow("site", input=list[str])


def size(link: str) -> int: ...


def whole(size: list[int]) -> int: ...


def partly(size: list[int | None]) -> int: ...


def test_elements_that_may_fail_are_none_for_the_steps_after_them(flow: Flow[list[str]]) -> None:
    step = flow.map(flow.run, tolerate=2)(size)
    with pytest.raises(ConfigurationError, match=r"list\[int\], but .* is list\[int \| None\]"):
        flow.step(whole)
    flow.step(partly)
    assert step.decode_output("[1, null]") == [1, None]
    assert flow.decode_output('{"partly": 3}') == {"partly": 3}


def test_runs_have_the_options_too(flow: Flow[list[str]]) -> None:
    other = App("tests").flow("other", input=str)
    step = flow.run_map("m", other, over=flow.run, tolerate="5%", concurrency=2)
    assert (step.shape.tolerated_percent, step.shape.concurrency) == (5, 2)
    assert step.decode_output("[null]") == [None]


def test_they_are_a_part_of_the_shape(flow: Flow[list[str]]) -> None:
    flow.map(flow.run, tolerate=2, concurrency=3)(size)
    other = App("tests").flow("site", input=list[str])
    other.map(other.run, tolerate="10%")(size)
    assert differences(flow.shape, other.shape) == [
        "step size: tolerate 2 in the code, none in the database",
        "step size: tolerate none in the code, 10% in the database",
        "step size: concurrency 3 in the code, none in the database",
    ]


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"tolerate": "101%"}, "tolerate: a number of elements or"),
        ({"tolerate": "few"}, "tolerate: a number of elements or"),
        ({"tolerate": -1}, "tolerate: a whole number from 0 to 2,147,483,647 is needed, not -1"),
        ({"tolerate": 0.5}, "tolerate: a whole number from 0 to 2,147,483,647 is needed"),
        (
            {"concurrency": 0},
            "concurrency: a whole number from 1 to 2,147,483,647 is needed, not 0",
        ),
        ({"concurrency": True}, "concurrency: a whole number from 1 to 2,147,483,647 is needed"),
    ],
)
def test_what_cannot_be_is_refused(flow: Flow[list[str]], options: Any, refusal: str) -> None:
    with pytest.raises(ConfigurationError, match=refusal):
        flow.map(flow.run, **options)(size)


def test_single_steps_have_no_such_options(flow: Flow[list[str]]) -> None:
    with pytest.raises(TypeError, match="a step: unexpected option tolerate"):
        flow.step(tolerate=1)  # type: ignore[call-overload]
