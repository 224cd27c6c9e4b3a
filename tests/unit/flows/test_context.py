"""What the code of a flow's step knows of its attempt."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest

from holdfast import App, current_flow_step, current_step
from holdfast.codec import encode_error
from holdfast.definitions import FlowStep
from holdfast.definitions.flow_context import FlowStepContext
from holdfast.definitions.middleware import CallNext, Middleware
from holdfast.definitions.steps import StepContext
from holdfast.errors import ConfigurationError
from holdfast.types import ClaimedTask, ErrorInfo
from holdfast.worker.attempts import Execution, Launcher

RUN = UUID(int=7)

app = App("shop")
flow = app.flow("site", version=2, timeout="5s")
seen: list[str] = []


class Noted(Middleware):
    async def step(self, context: StepContext, call_next: CallNext) -> object:
        seen.append(f"{context.workflow} {context.step} {context.attempt} {context.key}")
        return await call_next()


app.add_middleware(Noted())


@flow.step(on_exhausted="skip")
def maybe(run: Any) -> list[int]: ...


@flow.step
async def page(run: str, maybe: list[int] | None) -> str:
    step = current_flow_step()
    return f"{run} {step.idempotency_key} {step.skipped('maybe')}"


@flow.map(maybe)
def words(number: int) -> str:
    return f"{number} {current_flow_step().index} {current_step().step}"


def task(key: str, payload: str | None = None, heartbeat: str | None = None) -> ClaimedTask:
    return ClaimedTask(
        run_id=RUN,
        key=key,
        kind="step",
        queue="default",
        name="shop/site",
        version=2,
        attempts=3,
        lease_no=4,
        log_length=1,
        started_at=0,
        input=None,
        payload=payload,
        heartbeat=heartbeat,
        run_key="order-7",
        headers={"trace": "t"},
    )


async def run(step: FlowStep[..., object, object], claimed: ClaimedTask) -> str | ErrorInfo | None:
    """Run an attempt as a worker does, with the app's middleware."""
    ended = asyncio.Event()
    context = FlowStepContext(claimed, step)
    execution = Execution(step, context, 0, step.timeout_seconds, lambda _: ended.set())
    with ThreadPoolExecutor(1) as threads:
        Launcher(threads, {}).launch(execution, claimed.payload or "", app.registry.layers.steps)
        await ended.wait()
    return execution.result if execution.error is None else execution.error


def test_an_attempt_knows_its_flow_step_and_run() -> None:
    context = FlowStepContext(task("page"), page)
    assert (context.flow, context.workflow, context.version) == ("site", "site", 2)
    assert (context.step, context.index, context.key) == ("page", None, "page")
    assert (context.run_id, context.run_key, context.attempt) == (RUN, "order-7", 3)
    assert dict(context.headers) == {"trace": "t"}
    assert context.idempotency_key == f"{RUN}/page"


def test_an_element_knows_its_index() -> None:
    context = FlowStepContext(task("words:12", "3"), words)
    assert (context.step, context.index) == ("words", 12)
    assert context.idempotency_key == f"{RUN}/words:12"
    assert not context.skipped(maybe)


def test_a_skipped_dependency_is_told_from_one_that_gave_none() -> None:
    assert FlowStepContext(task("page", '{"run": 1}'), page).skipped("maybe")
    assert not FlowStepContext(task("page", '{"maybe": null}'), page).skipped(maybe)
    with pytest.raises(ConfigurationError, match="step page of flow site does not depend on x; it"):
        FlowStepContext(task("page", "{}"), page).skipped("x")


def test_an_attempt_sees_the_error_of_the_one_before() -> None:
    """P3."""
    error = ErrorInfo("builtins.ValueError", "no", "trace")
    kept = f'{{"error": {encode_error(error)}}}'
    assert FlowStepContext(task("page", heartbeat=kept), page).last_error == error
    assert FlowStepContext(task("page"), page).last_error is None
    assert FlowStepContext(task("page", heartbeat="{}"), page).last_error is None
    foreign = FlowStepContext(task("page", heartbeat='{"error": "it broke"}'), page).last_error
    assert foreign is not None
    assert "it broke" in foreign.message


def test_an_attempt_can_be_cancelled() -> None:
    context = FlowStepContext(task("page"), page)
    assert not context.cancelled
    context.cancel()
    assert context.cancelled


async def test_steps_run_as_attempts_with_middleware_around_them() -> None:
    seen.clear()
    assert await run(page, task("page", '{"run": "u"}')) == f'"u {RUN}/page True"'
    assert await run(words, task("words:1", "5")) == '"5 1 words"'
    assert seen == ["site page 3 page", "site words 3 words:1"]


async def test_a_payload_that_does_not_fit_fails_the_attempt() -> None:
    error = await run(words, task("words:1", '"x"'))
    assert isinstance(error, ErrorInfo)
    assert "parameter number of step words of flow site" in error.message


def test_outside_of_a_flow_there_is_no_context() -> None:
    with pytest.raises(LookupError, match="no step of a flow is running here"):
        current_flow_step()
