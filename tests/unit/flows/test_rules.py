"""Trigger rules of steps: what their parameters must admit, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest

from holdfast import App
from holdfast.definitions import Flow
from holdfast.errors import ConfigurationError
from holdfast.flows import draw, leaves, to_mermaid
from holdfast.types import ErrorInfo

ERROR = {"kind": "holdfast.errors.StepFailed", "message": "step page failed"}


@dataclass
class Page:
    content: str


@pytest.fixture
def flow() -> Flow[str]:
    """A flow with the steps `page`, `words` and, perhaps skipped with what follows, `maybe`."""
    flow = App("tests").flow("site", input=str)

    @flow.step
    def page(run: str) -> Page: ...

    @flow.step
    def words(page: Page) -> list[str]: ...

    @flow.step(on_exhausted="skip-cascade")
    def maybe(run: str) -> Page: ...

    return flow


def both(page: Page | ErrorInfo, words: list[str] | ErrorInfo, run: str) -> str: ...


def only_error(page: ErrorInfo) -> None: ...


def plain(page: Page) -> None: ...


def two_errors(page: ErrorInfo, words: ErrorInfo) -> None: ...


def wrong(page: str | ErrorInfo) -> None: ...


def not_none(maybe: Page | ErrorInfo) -> None: ...


def only_error_and_input(page: ErrorInfo, run: str) -> None: ...


def after_cancel(page: Page | ErrorInfo) -> None: ...


def nothing() -> None: ...


def anything(page, maybe) -> None: ...  # type: ignore[no-untyped-def]


def test_a_step_gets_the_output_or_the_error_of_what_it_depends_on(flow: Flow[str]) -> None:
    step = flow.step(trigger_rule="all_done")(both)
    given = {"run": "x", "words": ["a"], "$failed": {"page": ERROR}}
    _, arguments = step.decode_arguments(json.dumps(given))
    assert arguments == {"page": ErrorInfo(**cast("Any", ERROR)), "words": ["a"], "run": "x"}
    _, arguments = step.decode_arguments('{"run": "x", "page": {"content": "c"}, "words": []}')
    assert arguments["page"] == Page("c")
    assert step.shape.trigger_rule == "all_done"


@pytest.mark.parametrize(
    ("rule", "fn"),
    [
        ("one_failed", only_error),
        ("one_failed", only_error_and_input),
        ("all_done", anything),
        ("always", anything),
        ("always", nothing),
    ],
)
def test_what_can_be_given_is_taken(flow: Flow[str], rule: Any, fn: Callable[..., Any]) -> None:
    assert flow.step(trigger_rule=rule)(fn).shape.trigger_rule == rule


@pytest.mark.parametrize(
    ("options", "fn", "refusal"),
    [
        ({"trigger_rule": "all_done"}, plain, r"step page may fail.*declare Page \| ErrorInfo"),
        ({"trigger_rule": "one_failed"}, two_errors, r"declare Page \| ErrorInfo"),
        ({"trigger_rule": "all_done"}, only_error, r"declare Page \| ErrorInfo"),
        ({"trigger_rule": "all_done"}, wrong, "declared as str, but .* is Page"),
        ({"trigger_rule": "all_done"}, not_none, "may be skipped, and gives None"),
        ({"trigger_rule": "always"}, after_cancel, "may be skipped, and gives None"),
        ({"trigger_rule": "all_done"}, nothing, "a parameter must name the step that may fail"),
        ({"trigger_rule": "some"}, both, "none_failed, all_done, one_failed, always are possible"),
        ({"trigger_rule": "always", "when": {}}, nothing, "has no when and no unless"),
        ({"trigger_rule": "one_failed", "on_unmet": "fail"}, only_error, "because no step failed"),
    ],
)
def test_what_cannot_be_is_refused(
    flow: Flow[str], options: Any, fn: Callable[..., Any], refusal: str
) -> None:
    with pytest.raises(ConfigurationError, match=refusal):
        flow.step(**options)(fn)


def test_nothing_comes_after_a_step_that_always_runs(flow: Flow[str]) -> None:
    last = flow.step(trigger_rule="always")(nothing)

    def after(nothing: None) -> None: ...

    with pytest.raises(ConfigurationError, match="nothing, which always runs at the end"):
        flow.step(after)
    with pytest.raises(ConfigurationError, match="a map has no trigger rule"):
        flow.map(flow.steps["words"], trigger_rule="all_done")(len)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="define it after a step that comes before it"):
        App("other").flow("empty").step(trigger_rule="always")(nothing)
    assert [leaf.slug for leaf in leaves(flow.shape)] == ["words", "maybe"]
    assert last.shape.deps == ()


def test_drawings_show_the_rule(flow: Flow[str]) -> None:
    flow.step(trigger_rule="one_failed")(only_error)
    flow.step(trigger_rule="always")(nothing)
    lines = draw(flow.shape)
    assert lines[-2].endswith("← page  (one_failed)")
    assert lines[-1].split() == ["3", "nothing", "(always)"]
    drawing = to_mermaid(flow.shape)
    assert 's3["only_error<br/>one_failed"]' in drawing
    assert [line.strip() for line in drawing.splitlines() if "-.->" in line] == [
        "s1 -.-> s4",
        "s2 -.-> s4",
        "s3 -.-> s4",
    ]
