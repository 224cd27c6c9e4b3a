"""Steps: definition, calls, arguments and results."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.definitions.app import App
from holdfast.definitions.signatures import Declared
from holdfast.definitions.steps import Step, StepContext
from holdfast.errors import ConfigurationError, InvalidInput, InvalidName, PayloadError
from holdfast.retry import Retry
from holdfast.runtime.code.context import Context

if TYPE_CHECKING:
    from nowhere import Missing  # type: ignore[import-not-found]

app = App("tests", retry=Retry(attempts=7))


@app.step
async def double(x: int, *, note: str = "") -> int:
    return 2 * x


@app.step(name="half.of", retry=Retry.NEVER, timeout="3s")
def half(x: float) -> float:
    return x / 2


@app.step
def place(order: Order, *others: Order, tags: set[str] | None = None, **extra: int) -> Order:
    return order


@app.step
def untyped(x, y=1):  # type: ignore[no-untyped-def]
    return [x, y]


class Shop:
    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    @app.step
    async def label(self, x: int) -> str:
        return f"{self.prefix}{x}"

    @staticmethod
    @app.step
    def check(x: int) -> int:
        return x


@dataclass
class Order:
    """Defined after the steps that name it."""

    id: int


class RecordingLoop(asyncio.SelectorEventLoop):
    """An event loop on which step calls are recorded instead of made."""

    def __init__(self) -> None:
        super().__init__()
        self.caller = self
        self.calls: list[tuple[str, str]] = []

    def call_step(
        self,
        step: Step[..., Any],
        leaf: str,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
    ) -> Coroutine[object, None, object]:
        async def recorded() -> object:
            return "recorded"

        self.calls.append((leaf, step.encode_arguments(args, kwargs)))
        return recorded()


def test_options_fall_back_to_the_function_and_the_app() -> None:
    assert (double.name, double.is_async, double.timeout_seconds) == ("double", True, None)
    assert double.retry.attempts == 7
    assert (half.name, half.is_async, half.timeout_seconds) == ("half.of", False, 3)
    assert half.retry is Retry.NEVER
    changed = double.with_options(name="twice", timeout="1m", retry=Retry.NEVER)
    assert (changed.name, changed.timeout_seconds, changed.retry.attempts) == ("twice", 60, 1)
    assert (double.name, double.timeout_seconds) == ("double", None)


async def test_outside_a_workflow_a_step_is_a_plain_call() -> None:
    assert await double(2) == 4
    assert await half(3) == 1.5
    assert await Shop("n").label(1) == "n1"
    assert await Shop.check(4) == 4
    assert list(await asyncio.gather(double(1), half(1))) == [2, 0.5]
    async with asyncio.TaskGroup() as group:
        task = group.create_task(half(5))
    assert task.result() == 2.5


def test_in_a_workflow_the_run_is_called() -> None:
    async def main() -> object:
        return [await double(1, note="n"), await Shop("n").label(x=3)]

    loop = RecordingLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        assert runner.run(main()) == ["recorded", "recorded"]
    assert loop.calls == [("double", '{"a":[1],"k":{"note":"n"}}'), ("label", "[3]")]


def test_how_arguments_are_written_does_not_matter() -> None:
    assert untyped.encode_arguments((1, 2), {}) == "[1,2]"
    assert untyped.encode_arguments((1,), {"y": 2}) == "[1,2]"
    assert untyped.encode_arguments((), {"y": 2, "x": 1}) == "[1,2]"


@pytest.mark.parametrize("args", [(), (1, 2, 3)])
def test_arguments_that_the_function_does_not_take_are_refused(args: tuple[int, ...]) -> None:
    with pytest.raises(TypeError, match="untyped: "):
        untyped.encode_arguments(args, {})


def test_required_keyword_arguments_are_missed() -> None:
    step = Step(lambda *, x: x, name="keyword")
    with pytest.raises(TypeError, match="missing a required"):
        step.encode_arguments((), {})


def test_arguments_come_back_as_declared() -> None:
    args = (Order(1), Order(2))
    kwargs = {"tags": {"b", "a"}, "more": 3}
    text = place.encode_arguments(args, kwargs)
    assert place.decode_arguments(text) == (args, kwargs)


def test_a_step_gets_copies_of_mutable_arguments() -> None:
    order = Order(1)
    (copied,), _ = place.decode_arguments(place.encode_arguments((order,), {}))
    assert copied == order
    assert copied is not order


def test_bad_arguments_are_refused_by_step_and_parameter() -> None:
    with pytest.raises(InvalidInput, match=r"double\(x\): Expected `int`, got `str`"):
        double.decode_arguments('["1"]')
    with pytest.raises(InvalidInput, match="takes 1 arguments"):
        double.decode_arguments("[1, 2]")
    with pytest.raises(InvalidInput, match="no argument 'z'"):
        double.decode_arguments('{"a": [1], "k": {"z": 1}}')
    with pytest.raises(PayloadError, match=r"arguments of untyped: \$\[0\]: JSON has no NaN"):
        untyped.encode_arguments((float("nan"),), {})


@pytest.mark.parametrize(
    ("new", "text", "missing"),
    [
        (lambda x, y: 0, "[1]", "argument: 'y'"),
        (lambda x, y, z=0: 0, "[1]", "argument: 'y'"),
        (lambda x: 0, "[]", "argument: 'x'"),
        (lambda x, *, y: 0, "[1]", "keyword-only argument: 'y'|argument: 'y'"),
        (lambda x, *rest, y: 0, "[1,2]", "argument: 'y'"),
        (lambda x, y, *, z: 0, '{"a":[1],"k":{"z":1}}', "argument: 'y'"),
        (lambda x, *, y, z: 0, '{"a":[1],"k":{"z":1}}', "argument: 'y'"),
        (lambda x, y, **more: 0, '{"a":[1],"k":{"z":1}}', "argument: 'y'"),
        (lambda x, y: 0, '{"a":[1,2],"k":{"y":1}}', "multiple values for argument 'y'"),
        (lambda x, y, /: 0, '{"a":[1],"k":{"y":1}}', "'y'"),
    ],
)
def test_arguments_that_parameters_lack_do_not_fit(new: Any, text: str, missing: str) -> None:
    """A required one was added since they were encoded, or a default was removed."""
    with pytest.raises(InvalidInput, match=f"new: .*(?:{missing})"):
        Step(new, name="new").decode_arguments(text)


@pytest.mark.parametrize(
    ("new", "text"),
    [
        (lambda x, y=0: 0, "[1]"),
        (lambda x, *rest, y=0: 0, "[1,2]"),
        (lambda *, y: 0, '{"a":[],"k":{"y":1}}'),
        (lambda x, y=0, *, z: 0, '{"a":[1],"k":{"z":1}}'),
        (lambda x, y: 0, '{"a":[1],"k":{"y":1}}'),  # keyword-only before
        (lambda: 0, "[]"),
    ],
)
def test_arguments_that_defaults_complete_fit(new: Any, text: str) -> None:
    args, kwargs = Step(new, name="new").decode_arguments(text)
    assert new(*args, **kwargs) == 0


def test_results_are_checked_and_restored() -> None:
    assert place.encode_result(Order(1)) == '{"id":1}'
    assert place.decode_result('{"id":1}') == Order(1)
    assert half.encode_result(1.5) == "1.5"
    with pytest.raises(
        InvalidInput, match=r"result of place: Expected `object` \(Order\), got `int`"
    ):
        place.encode_result(1)
    with pytest.raises(
        InvalidInput, match=r"result of place: Expected `int`, got `str` - at `\$\.id`"
    ):
        place.decode_result('{"id":""}')


@pytest.mark.parametrize(
    ("declared", "text", "says"),
    [
        (Order, "1", "Expected `object` (Order), got `int`"),
        (list[Order], "[1]", "Expected `object`, got `int` - at `$[0]`"),
        (dict, "1", "Expected `object`, got `int`"),
        (int, "{}", "Expected `int`, got `object`"),
        (Order | None, "1", "Expected `object | null`, got `int`"),
    ],
)
def test_a_value_that_does_not_fit_is_told_the_class(
    declared: object, text: str, says: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        Declared.of_type(declared, "input").decode(text)
    assert str(refused.value) == f"input: {says}"


def test_a_bad_type_is_refused_at_the_definition() -> None:
    def bad(x: complex) -> int:
        return 1

    async def worse() -> list[range]:
        return []

    with pytest.raises(ConfigurationError, match=r"bad\(x\): builtins\.complex"):
        app.step(bad)
    with pytest.raises(ConfigurationError, match=r"result of worse: builtins\.range"):
        app.step(worse)


def test_a_type_that_only_the_type_checker_sees_is_refused_at_first_use() -> None:
    @app.step
    def step(x: Missing) -> int:
        return 1

    @app.workflow
    async def flow(ctx: Context, x: Missing) -> None: ...

    assert step.encode_result(1) == "1"
    with pytest.raises(InvalidInput, match=r"step\(x\): its type cannot be resolved"):
        step.decode_arguments("[1]")
    with pytest.raises(InvalidInput, match=r"input of flow: its type cannot be resolved"):
        flow.decode_input("1")
    with pytest.raises(ConfigurationError, match=r"input of flow: its type cannot be resolved"):
        flow.encode_input(1)


def generator() -> Any:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("fn", [generator, async_generator, dict, 3])
def test_what_cannot_be_a_step_is_refused(fn: Any) -> None:
    with pytest.raises(ConfigurationError):
        app.step(name="bad")(fn)


@pytest.mark.parametrize("decorator", [staticmethod, classmethod])
def test_a_decorator_of_methods_below_another_is_refused_with_the_right_order(
    decorator: Any,
) -> None:
    async def work(ctx: object) -> None: ...

    makers: dict[str, Any] = {"step": app.step, "activity": app.activity, "workflow": app.workflow}
    for kind, make in makers.items():
        with pytest.raises(
            ConfigurationError, match=f"^{kind} work: write @{decorator.__name__} above"
        ):
            make(decorator(work))


async def test_an_object_that_is_called_with_await_may_be_a_step() -> None:
    class Doubles:
        async def __call__(self, number: int) -> int:
            return 2 * number

    step = App("objects").step(Doubles(), name="double")
    assert step.is_async
    assert await step(3) == 6


def test_names_and_timeouts_are_checked() -> None:
    """B1."""
    with pytest.raises(ConfigurationError, match="give the step one with name="):
        app.step(lambda: None)
    with pytest.raises(InvalidName):
        double.with_options(name="a b")
    with pytest.raises(InvalidName, match="step double: name: 3 is not a name for a step"):
        app.step(name=3)(double.fn)  # type: ignore[call-overload]
    with pytest.raises(
        ConfigurationError, match="step double: timeout: a limit of 0 s lets nothing run"
    ):
        app.step(timeout=0)(double.fn)
    with pytest.raises(ConfigurationError, match="step double: timeout: not a duration: 'abc'"):
        double.with_options(timeout="abc")


def test_two_steps_of_one_name_in_one_app_are_refused() -> None:
    """A log could not tell them apart; other apps and other names are free."""
    app = App("shop")

    @app.step
    def send() -> None: ...

    def define(app: App, name: str | None = None) -> None:
        @app.step(name=name)
        def send() -> None: ...

    with pytest.raises(ConfigurationError, match="step send is defined twice in app shop"):
        define(app)
    define(app, "send-mail")
    define(App("other"))


def test_a_step_is_given_no_context() -> None:
    """The annotation is refused at the definition; else the call says it."""
    shop = App("shop")

    async def charge(ctx: Context, amount: int) -> None: ...
    async def plain(ctx, amount: int) -> None: ...  # type: ignore[no-untyped-def]

    with pytest.raises(ConfigurationError, match=r"charge\(ctx\).*only a workflow has a context"):
        shop.step(charge)
    with pytest.raises(ConfigurationError, match=r"charge\(ctx\).*only a workflow has a context"):
        shop.activity(charge)
    step: Any = shop.step(plain)
    with pytest.raises(TypeError, match="leave ctx out, and use current_step"):
        step.encode_arguments((1,), {})
    with pytest.raises(PayloadError, match="only a workflow has a context"):
        step.encode_arguments((Context(None), 1), {})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"finds it with current_step\(\)"):

        @shop.step
        async def attempt(context: StepContext) -> None: ...


def test_a_cell_of_a_notebook_that_runs_again_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = App("shop")

    async def send() -> None: ...

    app.step(send)
    monkeypatch.setattr(sys, "ps1", "In : ", raising=False)
    with pytest.raises(ConfigurationError, match="in a notebook, run all cells again"):
        app.step(send)
