"""What those hear who make a mistake that is easily made: what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pytest
from pydantic import BaseModel, Field, computed_field

from holdfast import App
from holdfast.definitions import Flow
from holdfast.errors import ConfigurationError


@pytest.fixture
def flow() -> Flow[Any]:
    flow = App("tests").flow("site")

    @flow.step
    def page(run: str) -> str: ...

    return flow


def with_context(ctx: Any, page: str) -> None: ...


def with_constant(page: str, limit: int = 3) -> None: ...


def before_its_dependency(words: list[str]) -> None: ...


def misspelt(pgae: str) -> None: ...


@pytest.mark.parametrize(
    ("fn", "hint"),
    [
        (with_context, "this name: call current_flow_step() for what a step knows of its run. A p"),
        (with_constant, "this name: a default is only for a step that was skipped, so write a con"),
        (before_its_dependency, "this name: define a step after all that it depends on. A param"),
        (misspelt, "this name: did you mean page? A parameter can be run, page, or have the outpu"),
    ],
)
def test_a_parameter_that_no_step_gives_is_answered_with_what_was_meant(
    flow: Flow[Any], fn: Callable[..., object], hint: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        flow.step(fn)
    assert hint in str(caught.value)


def test_a_default_that_is_a_step_is_answered_with_its_output(flow: Flow[Any]) -> None:
    page: Any = flow.steps["page"]

    def one(text: str = page) -> None: ...

    with pytest.raises(ConfigurationError, match=r"is a step itself: write its output, text=page"):
        flow.step(one)


def test_a_lambda_needs_a_name(flow: Flow[Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"flow site: .*no name of its own: give the step"):
        flow.step(lambda run: run)
    assert flow.step(name="copy")(lambda run: run).slug == "copy"


@pytest.mark.parametrize("fn", ["one", classmethod(with_context)])
def test_a_step_of_something_else_than_a_function_is_refused(flow: Flow[Any], fn: Any) -> None:
    refusal = "flow site: a step is made of a function, not of .*write @flow.step above"
    with pytest.raises(ConfigurationError, match=refusal):
        flow.step(fn)
    with pytest.raises(ConfigurationError, match=refusal):
        flow.map(flow.run)(fn)


def test_a_flow_is_no_decorator(flow: Flow[Any]) -> None:
    app: Any = App("other")
    with pytest.raises(ConfigurationError, match=r"is not a decorator: write `flow = app.flow\("):
        app.flow(misspelt)
    with pytest.raises(ConfigurationError, match=r"is not a decorator; write `flow = app.flow\("):
        app.flow("one")(misspelt)


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("retry", "a step: unexpected option retry: did you mean attempts and base_delay"),
        ("max_attempts", "a step: unexpected option max_attempts: did you mean attempts?"),
        ("time_out", "a step: unexpected option time_out: did you mean timeout?"),
        ("xyz", r"a step: unexpected option xyz\. There are "),
    ],
)
def test_an_option_that_does_not_exist_is_answered_with_those_that_do(
    flow: Flow[Any], option: str, hint: str
) -> None:
    other = App("tests").flow("other")
    options: dict[str, Any] = {option: 1}
    for define in (
        lambda: flow.step(**options),
        lambda: flow.map(flow.run, **options),
        lambda: flow.run_step("one", other, **options),
        lambda: flow.run_map("two", other, over=flow.run, **options),
    ):
        with pytest.raises(TypeError, match=f"flow site: {hint}") as caught:
            define()
        assert re.search("attempts, base_delay, .*jitter, .*timeout", str(caught.value))


@pytest.mark.parametrize("option", ["timeout", "base_delay"])
def test_attempts_of_a_flow_cannot_be_without_limit(option: str) -> None:
    options: dict[str, Any] = {option: None}
    with pytest.raises(ConfigurationError, match=f"flow one: {option}: a length of time is needed"):
        App("tests").flow("one", **options)


def test_a_type_of_input_that_cannot_be_restored_is_named_once() -> None:
    class Plain: ...

    with pytest.raises(ConfigurationError, match=r"^input of flow one: .*Plain cannot be restored"):
        App("tests").flow("one", input=Plain)


@dataclass
class Job:
    mode: str


class Order(BaseModel):
    mode: str = Field(alias="modus")

    @computed_field
    def total(self) -> int: ...


class Open(BaseModel, extra="allow"):
    mode: str


def test_a_condition_on_a_misspelt_field_of_the_input_is_refused() -> None:
    flow = App("tests").flow("one", input=Job)
    with pytest.raises(ConfigurationError, match="when: Job has no field 'moed': did you mean mo"):
        flow.step(name="one", when={"moed": "fast"})(lambda: None)
    flow.step(name="two", when={"colour": "red"})(lambda: None)  # from a newer program


class Typed(TypedDict):
    mode: str


class Packed(msgspec.Struct):
    mode: str


@pytest.mark.parametrize("option", ["when", "unless"])
@pytest.mark.parametrize("kind", [Job, Typed, Packed, Order, Job | None])
def test_a_condition_on_a_field_that_a_dependency_lacks_is_refused(kind: Any, option: str) -> None:
    flow = App("tests").flow("one")

    def look() -> Any: ...

    look.__annotations__["return"] = kind
    flow.step(look)
    said = f"step two of flow one: {option}: the output of step look is .* has no field 'colour'; "
    condition: Any = {option: {"look": {"colour": "red"}}}
    with pytest.raises(ConfigurationError, match=said + "its fields: mod"):

        @flow.step(**condition)
        def two(look: Any) -> None: ...


@pytest.mark.parametrize("kind", [Open, Any, dict[str, str]])
def test_a_condition_on_a_field_that_types_do_not_rule_out_is_taken(kind: Any) -> None:
    flow = App("tests").flow("one")

    def look() -> Any: ...

    look.__annotations__["return"] = kind
    flow.step(look)

    @flow.step(when={"look": {"colour": "red"}})
    def two(look: Any) -> None: ...


def test_fields_of_pydantic_models_have_the_names_that_are_stored() -> None:
    flow = App("tests").flow("one", input=Order | None)
    flow.step(name="one", when={"modus": 1}, unless={"total": 1})(lambda: None)
    for wrong in ("modu", "totla"):
        with pytest.raises(ConfigurationError, match=f"no field '{wrong}': did you mean"):
            flow.step(name="two", when={wrong: 1})(lambda: None)
    App("tests").flow("one", input=Open).step(name="one", when={"moed": 1})(lambda: None)
