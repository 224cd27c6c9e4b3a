"""Apps and workflows: definition, inputs and outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.definitions.app import App
from holdfast.errors import ConfigurationError, InvalidInput, InvalidName, UnknownWorkflow

if TYPE_CHECKING:
    from holdfast.runtime.code.context import Context

app = App("shop")


@dataclass
class Order:
    id: int


@app.workflow
async def checkout(ctx: Context, order: Order) -> Order:
    return order


@app.workflow(name="checkout", version=2, queue="fast", retention=None, timeout="1h", priority=0)
async def checkout_2(ctx: Context, order: Order) -> Order:
    return order


@app.workflow
async def plain(ctx: Context) -> str:
    return "done"


@app.workflow
async def counted(ctx: Context, count: int = 5) -> int:
    return count


def test_an_app_finds_its_workflows() -> None:
    assert app.handlers() == (
        "shop/checkout@1",
        "shop/checkout@2",
        "shop/plain@1",
        "shop/counted@1",
    )
    assert app.workflows["checkout", 1] is checkout
    assert app.find("checkout", 1) is checkout
    assert app.latest("checkout") is checkout_2
    with pytest.raises(UnknownWorkflow, match="checkout@3; it has checkout@1"):
        app.find("checkout", 3)
    with pytest.raises(
        UnknownWorkflow, match=r"nothing; it has checkout@1.* another app is APP/nothing"
    ):
        app.latest("nothing")


def test_options_reach_the_workflow() -> None:
    """B5."""
    assert (checkout.name, checkout.version) == ("checkout", 1)
    assert (checkout.full_name, checkout.handler) == ("shop/checkout", "shop/checkout@1")
    assert (checkout.queue, checkout.priority) == ("default", 2)
    assert (checkout.retention_seconds, checkout.timeout_seconds) == (30 * 86400, None)
    assert (checkout_2.queue, checkout_2.priority) == ("fast", 0)
    assert (checkout_2.retention_seconds, checkout_2.timeout_seconds) == (None, 3600)


async def test_a_workflow_is_called_with_its_typed_input() -> None:
    assert await checkout.invoke(None, '{"id": 1}') == Order(1)
    assert await plain.invoke(None, "null") == "done"
    assert await counted.invoke(None, "7") == 7
    assert await counted.invoke(None, " null") == 5


def test_bad_input_is_refused_before_a_run_exists() -> None:
    assert checkout.encode_input({"id": 1}) == checkout.encode_input(Order(1)) == '{"id":1}'
    with pytest.raises(InvalidInput, match=r"input of checkout: .* at `\$\.id`"):
        checkout.encode_input({"id": "x"})
    with pytest.raises(InvalidInput):
        checkout.encode_input()
    with pytest.raises(InvalidInput, match="plain takes no input"):
        plain.encode_input(1)
    with pytest.raises(InvalidInput):
        checkout.decode_input('{"id": null}')


async def test_an_input_without_a_parameter_is_refused_when_the_run_begins() -> None:
    with pytest.raises(InvalidInput, match="plain takes no input"):
        plain.decode_input("3")
    with pytest.raises(InvalidInput, match="plain takes no input"):
        await plain.invoke(None, "3")
    assert plain.decode_input(" null") is None


def test_the_default_of_an_input_is_recorded_when_the_run_starts() -> None:
    assert counted.encode_input() == "5"
    assert plain.encode_input() == "null"


def test_outputs_are_checked_and_restored() -> None:
    assert checkout.decode_output(checkout.encode_output(Order(1))) == Order(1)
    with pytest.raises(InvalidInput, match="output of checkout"):
        checkout.encode_output("no order")


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"name": 3}, "3 is not a name for a workflow"),
        ({"queue": 3}, "workflow plain: queue: 3 is not a name for a queue"),
        ({"version": "2"}, "workflow plain: version: a whole number from 1 to"),
        ({"retention": "abc"}, "workflow plain: retention: not a duration: 'abc'"),
        ({"timeout": "abc"}, "workflow plain: timeout: not a duration: 'abc'"),
    ],
)
def test_an_option_that_cannot_work_is_named(options: dict[str, Any], refusal: str) -> None:
    with pytest.raises(ConfigurationError, match=refusal):
        App("other").workflow(**options)(plain.fn)


def test_a_version_is_defined_once() -> None:
    with pytest.raises(ConfigurationError, match="checkout@1 is defined twice"):
        app.workflow(name="checkout")(checkout.fn)


def not_async(ctx: Any) -> None: ...
async def no_context() -> None: ...
async def two_inputs(ctx: Any, a: int, b: int) -> None: ...
async def keyword_only(ctx: Any, *, a: int = 1) -> None: ...
async def variadic(ctx: Any, *inputs: int) -> None: ...
async def bad_input(ctx: Any, a: complex) -> None: ...
async def bad_output(ctx: Any) -> complex:
    return 1j


@pytest.mark.parametrize(
    "fn", [not_async, no_context, two_inputs, keyword_only, variadic, bad_input, bad_output]
)
def test_what_cannot_be_a_workflow_is_refused_at_its_definition(fn: Any) -> None:
    empty = App("empty")
    with pytest.raises(ConfigurationError, match=fn.__name__):
        empty.workflow(fn)
    assert empty.handlers() == ()


@pytest.mark.parametrize(
    "options",
    [
        {"version": 0},
        {"priority": 5},
        {"queue": "a b"},
        {"name": "a@b"},
        {"retention": "x"},
        {"timeout": -1},
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        App("empty").workflow(**options)(plain.fn)


def test_an_apps_name_is_checked() -> None:
    with pytest.raises(InvalidName):
        App("my shop")


def test_a_workflow_on_a_method_is_refused() -> None:
    empty = App("empty")
    with pytest.raises(ConfigurationError, match=r"workflow checkout is a method: .*a function"):

        class Shop:
            @empty.workflow
            async def checkout(self, ctx: Any) -> None: ...

    with pytest.raises(ConfigurationError, match="workflow place is a method"):

        class Other:
            @empty.workflow
            async def place(self, ctx: Any, order: int) -> None: ...

    assert empty.handlers() == ()
