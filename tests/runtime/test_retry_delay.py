"""Pauses that errors ask for, and what they say for programs."""

from __future__ import annotations

import json
import sys

import pytest

from holdfast import ActivityFailed, App, Context, Retry, StepFailed
from holdfast.codec import describe, encode_error
from holdfast.errors import ConfigurationError
from holdfast.testing import Environment

app = App("throttled")


class Throttled(Exception):
    def __init__(self, after: object) -> None:
        super().__init__("too many requests")
        self.retry_after = after
        self.data = {"status": 429, "after": after}


def asked(error: BaseException) -> object:
    after = getattr(error, "retry_after", None)
    if after == "exit":
        sys.exit("a command line inside")
    return after


policy = Retry(attempts=2, base="1s", jitter=0, delay=asked)  # type: ignore[arg-type]
failures: list[object] = []


@app.step(retry=policy)
async def fetch() -> str:
    if failures:
        raise Throttled(failures.pop())
    return "page"


@app.activity(retry=policy)
async def render() -> str:
    return await fetch.fn()


@app.workflow
async def crawl(ctx: Context, remote: bool) -> str:
    try:
        return await (render() if remote else fetch())
    except (StepFailed, ActivityFailed) as failed:
        return json.dumps(failed.error.data)


@pytest.mark.parametrize("remote", [False, True], ids=["step", "activity"])
@pytest.mark.parametrize(
    ("after", "seconds"),
    [(7, 7.0), ("1h", 3600.0), (None, 1.0), ("soon", 1.0), (1e300, 1.0), ("exit", 1.0)],
)
async def test_the_error_says_how_long_to_wait(remote: bool, after: object, seconds: float) -> None:
    """What it cannot mean is the policy's usual pause."""
    failures[:] = [after]
    async with Environment(app) as env:
        handle = await env.client.start(crawl, remote)
        assert await env.result(handle) == "page"
        kind = "ActivityRetryScheduled" if remote else "StepRetryScheduled"
        log = await env.client.runs.log(handle.run_id)
        [retry] = [entry.event for entry in log if entry.event.type == kind]
    pause = json.loads(retry.details or "{}")["retry_at"] - retry.at
    assert pause / 1e6 == pytest.approx(seconds, abs=0.5)


@pytest.mark.parametrize("remote", [False, True], ids=["step", "activity"])
async def test_the_workflow_reads_the_data_of_an_error(remote: bool) -> None:
    failures[:] = [1, 2]
    async with Environment(app) as env:
        assert json.loads(await env.run(crawl, remote)) == {"status": 429, "after": 1}


def test_data_that_cannot_be_stored_is_left_out() -> None:
    error = Throttled(object())
    assert describe(error).data is None
    assert "data" not in json.loads(encode_error(describe(error)))
    error.data = {"text": "x" * 100_000}
    assert describe(error).data is None


@pytest.mark.parametrize("length", [1e300, "999999999999999999w"])
def test_a_length_of_time_beyond_timestamps_is_refused_at_its_definition(
    length: float | str,
) -> None:
    with pytest.raises(ConfigurationError, match="longer than 10,000,000,000 seconds"):
        Retry(base=length, max=length)
