"""The parameters of a flow's steps: what is given to them, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import App
from holdfast.definitions import Flow
from holdfast.errors import ConfigurationError, InvalidInput, PayloadError

if TYPE_CHECKING:
    from nowhere import Unseen  # type: ignore[import-not-found]


@dataclass
class Page:
    content: str


@pytest.fixture
def flow() -> Flow[str]:
    """A flow with the steps `page`, `pages`, `plain` and, perhaps skipped, `maybe`."""
    flow = App("tests").flow("site", input=str)

    @flow.step
    def page(run: str) -> Page: ...

    @flow.step
    def pages(page: Page) -> list[Page]: ...

    @flow.step
    def plain(run): ...  # type: ignore[no-untyped-def]

    @flow.step(on_exhausted="skip")
    def maybe(run: str) -> Page: ...

    return flow


def wrong_type(page: str) -> None: ...


def wrong_input(run: int) -> None: ...


def typing_error(pgae: Page) -> None: ...


def far_off(xyz: Page, limit: int = 3) -> None: ...


def unknown_default(limit: int = 3) -> None: ...


def not_none(maybe: Page) -> None: ...


@pytest.mark.parametrize(
    ("fn", "refusal"),
    [
        (wrong_type, "parameter page is declared as str, but the output of step page is Page"),
        (wrong_input, "parameter run is declared as int, but the run's input is str"),
        (
            typing_error,
            "a parameter pgae, but no step before it has this name: did you mean page? A "
            "parameter can be run, page, pages, plain, maybe, or",
        ),
        (far_off, "a parameter xyz, but no step before it has this name: define a step after"),
        (unknown_default, "a parameter limit, but no step before it has this name"),
        (
            not_none,
            "parameter maybe is declared as Page, but step maybe may be skipped, and "
            "gives None then: declare Page | None, or write a default",
        ),
    ],
)
def test_a_parameter_that_cannot_work_is_refused_with_flow_step_and_types(
    flow: Flow[str], fn: Callable[..., object], refusal: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        flow.step(fn)
    assert f"step {fn.__name__} of flow site" in str(caught.value)
    assert refusal in str(caught.value)
    assert fn.__name__ not in flow.steps


def test_a_wrong_default_is_refused_as_a_wrong_name_is(flow: Flow[str]) -> None:
    page = flow.steps["page"]

    def one(given: str = page.output) -> None: ...  # type: ignore[assignment]

    with pytest.raises(
        ConfigurationError, match="given is declared as str, but the output of step page"
    ):
        flow.step(one)


def test_a_step_of_another_flow_is_refused(flow: Flow[str]) -> None:
    other = App("tests").flow("other")

    @other.step
    def page(run: str) -> Page: ...

    @other.step
    def pages(page: Page) -> list[Page]: ...

    def one(given: Page = page.output) -> None: ...

    with pytest.raises(
        ConfigurationError, match=r"takes the output of step page of another flow; here"
    ):
        flow.step(one)
    with pytest.raises(
        ConfigurationError,
        match="step pages of flow other is not of this flow; here there are run, page",
    ):
        flow.map(pages)
    with pytest.raises(ConfigurationError, match="input of flow other> is not of this flow"):
        flow.map(other.run)


def test_missing_and_unresolvable_annotations_pass(flow: Flow[str]) -> None:
    @flow.step
    def one(page, plain): ...  # type: ignore[no-untyped-def]

    @flow.step
    def two(page: Unseen, one: int) -> Unseen: ...

    @flow.step
    def three(two: Page, plain: list[int]) -> None: ...

    @flow.map(flow.steps["plain"])  # type: ignore[arg-type]
    def four(element: Page) -> None: ...

    assert three.deps == ("two", "plain")


def test_a_step_behind_a_cascade_need_not_admit_none() -> None:
    """Such a step is skipped itself: it never runs without the dependency."""
    flow = App("tests").flow("site")

    @flow.step(when={"a": 1}, on_unmet="skip-cascade", on_exhausted="skip-cascade")
    def first(run: Any) -> Page: ...

    @flow.step(when={"first": {}}, on_unmet="fail")
    def second(first: Page) -> Page: ...

    @flow.step
    def third(first: Page, second: Page) -> Page: ...

    assert not any(step.may_be_skipped for step in flow.steps.values())


@pytest.mark.parametrize(
    ("options", "may_be_skipped"),
    [
        ({"on_exhausted": "skip"}, True),
        ({"when": {}}, True),
        ({"unless": {}, "on_unmet": "skip"}, True),
        ({}, False),
        ({"unless": {}, "on_unmet": "fail"}, False),
        ({"on_unmet": "skip"}, False),
    ],
)
def test_a_dependency_that_may_be_skipped_must_admit_none(
    options: Any, may_be_skipped: bool
) -> None:
    flow = App("tests").flow("site")

    @flow.step(**options)
    def first(run: Any) -> Page: ...

    def strict(first: Page) -> None: ...

    if may_be_skipped:
        with pytest.raises(ConfigurationError, match="may be skipped"):
            flow.step(strict)
    else:
        flow.step(strict)

    @flow.step
    def lenient(first: Page | None) -> None: ...

    @flow.step
    def with_default(first: Page = Page("none")) -> None: ...

    @flow.step
    def unannotated(first): ...  # type: ignore[no-untyped-def]


def test_a_map_over_a_step_that_may_be_skipped_takes_its_elements() -> None:
    """P5. Without elements the map completes with an empty list."""
    flow = App("tests").flow("site")

    @flow.step(on_exhausted="skip")
    def pages(run: Any) -> list[Page]: ...

    @flow.map(pages)
    def one(page: Page) -> str: ...

    @flow.step
    def last(one: list[str]) -> None: ...

    assert not one.may_be_skipped


def test_arguments_have_their_declared_types(flow: Flow[str]) -> None:
    @flow.step
    def one(run: str, /, page: Page, *, also: Any = flow.steps["pages"].output) -> None: ...

    text = '{"run": "u", "pages": [1, 2], "page": {"content": "c"}}'
    assert one.decode_arguments(text) == (("u",), {"page": Page("c"), "also": [1, 2]})
    given = one.encode_arguments(("u", Page("c")), {"also": [1, 2]})
    assert given == '{"page":{"content":"c"},"pages":[1,2],"run":"u"}'
    with pytest.raises(TypeError, match="step one of flow site: missing a required argument"):
        one.encode_arguments((), {})


def test_a_skipped_dependency_is_none_or_the_default(flow: Flow[str]) -> None:
    @flow.step
    def one(
        page: Page, first: Any = flow.steps["maybe"].output, maybe: Page | None = Page("none")
    ) -> None: ...

    assert one.decode_arguments('{"page": {"content": "c"}}')[1] == {
        "page": Page("c"),
        "first": None,
        "maybe": Page("none"),
    }
    assert one.decode_arguments('{"page": {"content": "c"}, "maybe": null}')[1]["maybe"] is None


def test_a_payload_that_does_not_fit_names_step_and_parameter(flow: Flow[str]) -> None:
    page = flow.steps["pages"]
    with pytest.raises(InvalidInput, match="parameter page of step pages of flow site"):
        page.decode_arguments('{"page": 3}')
    with pytest.raises(InvalidInput, match="parameter page of step pages of flow site"):
        page.decode_arguments('{"page": null}')
    with pytest.raises(InvalidInput, match="what step pages of flow site is given is not"):
        page.decode_arguments("[]")


def nothing() -> None: ...


def two(page: Page, run: str) -> None: ...


def two_with_default(page: Page, limit: int = 3) -> None: ...


def wrong_element(page: str) -> None: ...


def rest(*pages: Page) -> None: ...


@pytest.mark.parametrize(
    ("fn", "refusal"),
    [
        (nothing, "maps over the output of step pages, so it takes a parameter: an element"),
        (two, "has the parameter run besides page: a map step is given one element of the output"),
        (two_with_default, "has the parameter limit besides page"),
        (
            wrong_element,
            "parameter page is declared as str, but it takes an element of the output of step "
            "pages, which is list[Page]",
        ),
        (rest, "has the parameter *pages: 'Page': write one parameter"),
    ],
)
def test_a_map_takes_one_element_and_nothing_else(
    flow: Flow[str], fn: Callable[..., object], refusal: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        flow.map(flow.steps["pages"])(fn)  # type: ignore[arg-type]
    assert str(caught.value).startswith(f"step {fn.__name__} of flow site")
    assert refusal in str(caught.value)


def test_a_map_needs_a_list(flow: Flow[str]) -> None:
    refusal = "maps over {}: a map step needs a list"
    with pytest.raises(ConfigurationError, match=refusal.format("the run's input, which is str")):
        flow.map(flow.run)(nothing_of)  # type: ignore[arg-type]
    which = "the output of step page, which is Page"
    with pytest.raises(ConfigurationError, match=refusal.format(which)):
        flow.map(flow.steps["page"])(nothing_of)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="map takes a step of the flow or its run, not"):
        flow.map(nothing_of)  # type: ignore[arg-type]


def nothing_of(page: Any) -> None: ...


def test_the_output_of_a_map_is_a_list(flow: Flow[str]) -> None:
    @flow.map(flow.steps["pages"])  # type: ignore[arg-type]
    def lengths(page: Page) -> int: ...

    @flow.map(lengths)
    def halves(length: int) -> float: ...

    @flow.step
    def last(lengths: list[int], halves: list[float]) -> None: ...

    def wrong(lengths: int) -> None: ...

    with pytest.raises(ConfigurationError, match="the output of step lengths is list"):
        flow.step(wrong)
    assert halves.deps == ("lengths",)


def test_an_element_is_decoded_into_its_type(flow: Flow[str]) -> None:
    @flow.map(flow.steps["pages"])  # type: ignore[arg-type]
    def one(*, page: Page) -> int: ...

    assert one.decode_arguments('{"content": "c"}') == ((), {"page": Page("c")})
    assert one.encode_arguments((), {"page": Page("c")}) == '{"content":"c"}'
    assert one.encode_result(3) == "3"
    assert one.decode_output("[1, 2]") == [1, 2]
    with pytest.raises(InvalidInput, match="parameter page of step one of flow site"):
        one.decode_arguments('"c"')
    with pytest.raises(PayloadError):
        one.encode_result(float("nan"))
