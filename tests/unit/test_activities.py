"""Activities, and workflows as they are called: definitions, and calls outside of workflows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest

from holdfast import Context, Retry
from holdfast.definitions.activities import Activity
from holdfast.definitions.app import App
from holdfast.errors import ConfigurationError, InvalidName
from holdfast.store.memory import MemoryStore
from holdfast.worker import Worker

app = App("tests", retry=Retry(attempts=7))


@app.activity
async def double(x: int, *, note: str = "") -> int:
    return 2 * x


@app.activity(
    queue="gpu",
    name="half.of",
    retry=Retry.NEVER,
    start_to_close="3s",
    schedule_to_close="1m",
    heartbeat_timeout="2s",
)
def half(x: float) -> float:
    return x / 2


@app.workflow(queue="orders")
async def checkout(ctx: Context, order: int) -> int:
    return order


class RecordingLoop(asyncio.SelectorEventLoop):
    """An event loop on which calls of activities and workflows are recorded, not made."""

    def __init__(self) -> None:
        super().__init__()
        self.caller = self
        self.calls: list[tuple[str, tuple[object, ...], Mapping[str, object]]] = []

    def call_activity(
        self, activity: Any, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> Coroutine[object, None, object]:
        return self._record(activity.handler, args, kwargs)

    def call_startable(
        self, startable: Any, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> Coroutine[object, None, object]:
        return self._record(startable.handler, args, kwargs)

    async def _record(
        self, handler: str, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> object:
        self.calls.append((handler, args, kwargs))
        return "recorded"


def limits(activity: Activity[..., object]) -> tuple[float | None, float | None, float | None]:
    return (
        activity.start_to_close_seconds,
        activity.schedule_to_close_seconds,
        activity.heartbeat_timeout_seconds,
    )


def test_options_fall_back_to_the_function_and_the_app() -> None:
    """S7."""
    assert (double.name, double.queue, double.handler) == ("double", "default", "tests/double@0")
    assert double.retry.attempts == 7
    assert limits(double) == (None, None, None)
    assert (half.name, half.queue, half.handler) == ("half.of", "gpu", "tests/half.of@0")
    assert half.retry is Retry.NEVER
    assert limits(half) == (3, 60, 2)


def test_options_may_be_others_for_some_calls() -> None:
    """S7."""
    changed = double.with_options(
        queue="cpu",
        retry=Retry.NEVER,
        start_to_close="1m",
        schedule_to_close="1h",
        heartbeat_timeout=5,
    )
    assert (changed.queue, changed.retry.attempts) == ("cpu", 1)
    assert limits(changed) == (60, 3600, 5)
    assert (double.queue, double.retry.attempts) == ("default", 7)
    assert limits(double) == (None, None, None)


async def test_outside_a_workflow_an_activity_is_a_plain_call() -> None:
    assert await double(2, note="n") == 4
    assert await half(3) == 1.5
    assert list(await asyncio.gather(double(1), half(1))) == [2, 0.5]


def test_in_a_workflow_the_run_is_called() -> None:
    async def main() -> object:
        return [await double(1, note="n"), await checkout(3)]

    loop = RecordingLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        assert runner.run(main()) == ["recorded", "recorded"]
    assert loop.calls == [("tests/double@0", (1,), {"note": "n"}), ("tests/checkout@1", (3,), {})]


async def test_a_workflow_called_outside_of_workflows_names_who_starts_runs() -> None:
    with pytest.raises(ConfigurationError, match=r"client\.start"):
        await checkout(3)


def test_an_app_serves_the_queues_of_its_workflows_and_activities() -> None:
    assert app.handlers() == ("tests/checkout@1", "tests/double@0", "tests/half.of@0")
    assert app.queues() == ("default", "gpu", "orders")
    assert app.activities["half.of"] is half


def test_a_worker_can_run_an_app_with_activities_only() -> None:
    """S7."""
    media = App("media")
    with pytest.raises(ConfigurationError, match="no workflow, no activity and no consumer to run"):
        Worker(media, MemoryStore())
    media.activity(queue="gpu")(half.fn)
    info = Worker(media, MemoryStore()).info
    assert (info.queues, info.handlers) == (("gpu",), ("media/half@0",))


def test_two_activities_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="activity double is defined twice"):
        app.activity(name="double")(half.fn)


def test_a_method_cannot_be_an_activity() -> None:
    with pytest.raises(ConfigurationError, match="label is a method"):

        class Shop:
            @app.activity
            def label(self, x: int) -> str:
                return str(x)


@pytest.mark.parametrize(
    "define",
    [
        lambda: app.activity(name="a b")(half.fn),
        lambda: app.activity(queue="a b")(half.fn),
        lambda: double.with_options(queue=""),
    ],
)
def test_names_are_checked(define: Callable[[], object]) -> None:
    """B1."""
    with pytest.raises(InvalidName):
        define()


@pytest.mark.parametrize(
    "define",
    [
        lambda: app.activity(retry=3)(half.fn),  # type: ignore[call-overload]
        lambda: app.step(retry=3)(half.fn),  # type: ignore[call-overload]
        lambda: double.with_options(retry=3),  # type: ignore[arg-type]
    ],
)
def test_a_number_is_refused_as_retry_policy(define: Callable[[], object]) -> None:
    with pytest.raises(ConfigurationError, match=r"retry must be a Retry, such as Retry.*, not 3"):
        define()


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"queue": 3}, "activity half: queue: 3 is not a name for a queue: a name is 1 to 128 of"),
        ({"name": 3}, "activity half: name: 3 is not a name for an activity"),
        ({"retry": "x"}, "activity half: retry must be a Retry"),
        ({"heartbeat_timeout": "abc"}, "activity half: heartbeat_timeout: not a duration: 'abc'"),
        ({"start_to_close": -1}, "activity half: start_to_close: not a duration: -1"),
        ({"schedule_to_close": []}, r"activity half: schedule_to_close: not a duration: \[\]"),
    ],
)
def test_an_option_that_cannot_work_is_named_with_its_activity(
    options: Mapping[str, Any], refusal: str
) -> None:
    with pytest.raises(ConfigurationError, match=refusal):
        app.activity(**options)(half.fn)
    if "name" not in options:
        with pytest.raises(ConfigurationError, match=refusal.replace("half", "double")):
            double.with_options(**options)


@pytest.mark.parametrize("option", ["start_to_close", "schedule_to_close", "heartbeat_timeout"])
def test_a_limit_that_lets_nothing_run_is_refused(option: str) -> None:
    with pytest.raises(
        ConfigurationError, match=f"activity half: {option}: a limit of 0 s lets nothing run"
    ):
        app.activity(**{option: 0})(half.fn)  # type: ignore[call-overload]
