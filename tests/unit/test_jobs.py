"""The definition of jobs: what can be one, and what is refused when it is defined."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import App, Batch, Retry
from holdfast.definitions.catalogue import entry_of
from holdfast.definitions.jobs import Job
from holdfast.errors import ConfigurationError, InvalidInput, InvalidName
from holdfast.testing import Environment


def positional_only(a: int, /) -> None: ...


def variadic(*paths: str) -> None: ...


def any_keywords(**names: str) -> None: ...


def of_a_class(self: object, a: int) -> None: ...


@pytest.mark.parametrize("fn", [positional_only, variadic, any_keywords, of_a_class])
def test_parameters_without_names_are_refused(fn: Callable[..., None]) -> None:
    app = App("shop")
    with pytest.raises(ConfigurationError, match=f"step {fn.__name__} cannot be a job"):
        app.job(fn)
    assert app.handlers() == ()


@pytest.mark.parametrize("given", ["ann", 3, ["ann", 3], True])
async def test_an_input_that_is_no_object_is_refused_with_the_names(given: object) -> None:
    app = App("shop")

    @app.job
    async def mail(to: str, copies: int = 1) -> str:
        return to * copies

    told = re.escape('input of mail: the arguments of a job are stored by name: give {"to": …, ')
    async with Environment(app) as env:
        with pytest.raises(InvalidInput, match=told):
            await env.client.start(mail, input=given)
        with pytest.raises(InvalidInput, match=told):
            await env.client.start("mail", given)
        with pytest.raises(InvalidInput, match=told) as refused:
            await env.client.start_many(mail, [given])
        assert str(refused.value).endswith("or a tuple of them in their order: (to, copies)")
        with pytest.raises(InvalidInput, match=told):  # as on a worker
            mail.decode_input(json.dumps(given))
        with pytest.raises(InvalidInput, match="input of mail: Expected `int`"):
            await env.client.start(mail, "ann", "x")
        with pytest.raises(
            TypeError, match=r"unexpected option countdown\. There are .*delay, .*start_at"
        ):
            await env.client.start(mail, "ann", countdown=3)  # type: ignore[call-overload]


def test_a_type_that_json_cannot_be_turned_into_is_refused() -> None:
    def run(task: Job[[], None]) -> None: ...

    with pytest.raises(ConfigurationError, match=r"run\(task\).*cannot be restored from JSON"):
        App("shop").job(run)


def test_a_name_that_a_workflow_or_a_step_has_is_refused() -> None:
    app = App("shop")

    @app.workflow
    async def ship(ctx: Any) -> None: ...

    with pytest.raises(ConfigurationError, match="workflow ship@1 is defined twice"):
        app.job(name="ship")(lambda: None)
    app.step(name="pack")(lambda: None)
    with pytest.raises(ConfigurationError, match="step pack is defined twice"):
        app.job(name="pack")(lambda: None)
    with pytest.raises(InvalidName):
        app.job(name="a b")(lambda: None)
    assert list(app.workflows) == [("ship", 1)]


def test_what_is_a_step_already_has_options_of_its_own() -> None:
    app = App("shop")
    step = app.step(name="pack")(lambda: None)
    with pytest.raises(
        ConfigurationError, match=r"retry, timeout belongs to the step: .*@app.step"
    ):
        app.job(retry=Retry.NEVER, timeout=1)(step)
    activity = app.activity(name="send", queue="mail")(lambda: None)
    with pytest.raises(ConfigurationError, match="name belongs to the activity"):
        app.job(name="other")(activity)
    assert app.job(step).queue == "default"
    assert app.job(activity).queue == "mail"


def test_its_options_are_checked() -> None:
    app = App("shop")
    with pytest.raises(ConfigurationError, match="workflow pack: priority"):
        app.job(name="pack", priority=5)(lambda: None)
    with pytest.raises(ConfigurationError, match="queue"):
        app.job(name="pack", queue="a b")(lambda: None)
    with pytest.raises(ConfigurationError, match="timeout"):
        app.job(name="pack", run_timeout="soon")(lambda: None)


def test_a_job_says_what_it_takes() -> None:
    app = App("shop")

    @app.job
    def thumbnail(path: str, size: int = 128) -> bytes:
        """Make a small picture.

        And more about it.
        """
        return b""

    assert repr(thumbnail) == "<Job shop/thumbnail@1>"
    assert entry_of(thumbnail).about == "Make a small picture."
    assert app.handlers() == ("shop/thumbnail@1",)
    assert thumbnail.encode_input(("a",)) == '{"path":"a"}'
    assert thumbnail.encode_input({"size": 1, "path": "a"}) == '{"size":1,"path":"a"}'
    assert thumbnail.decode_output('"AAA="') == b"\0\0"


async def test_a_job_of_a_batch_takes_one_element() -> None:
    app = App("shop")

    @app.job
    @app.activity(batch=Batch(10))
    def double(numbers: list[int]) -> list[int]:
        return [number * 2 for number in numbers]

    async with Environment(app) as env:
        assert await env.run(double, 4) == 8
        assert await env.run(double, input={"numbers": 5}) == 10


async def test_an_environment_runs_jobs_and_time_passes_for_their_retries() -> None:
    app, attempts = App("shop"), list[int]()

    @app.job(retry=Retry(attempts=3, base="1h", max="1h"))
    def flaky(text: str) -> str:
        attempts.append(1)
        if len(attempts) < 3:
            raise OSError
        return text

    async with Environment(app) as env:
        assert await env.run(flaky, "a", tags=["t"]) == "a"
    assert len(attempts) == 3
