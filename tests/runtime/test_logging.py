"""What a worker logs of failures, and what log lines of steps and activities carry."""

from __future__ import annotations

import io
import json
import logging
import os
import traceback
from uuid import UUID, uuid4

import pytest

from holdfast import App, Context, Retry, RunFailed, StepFailed, current_activity
from holdfast.cli.process.logs import JsonFormatter, LineFormatter
from holdfast.logs import AttemptFilter
from holdfast.testing import Environment

app = App("shop")
shop = logging.getLogger("shop")
calls: list[str] = []


@app.step(retry=Retry(attempts=2, base="2s", max="2s", jitter=0))
async def charge(customer: str) -> str:
    raise ConnectionError(f"the bank refuses {customer}")


@app.step(retry=Retry(attempts=2, base="1s", jitter=0))
def pack(article: str) -> str:
    shop.info("packing %s", article)
    calls.append(article)
    if len(calls) == 1:
        raise ValueError("no box")
    return article


@app.activity(retry=Retry(attempts=1))
async def render(page: int) -> None:
    shop.info("rendering")
    raise ValueError(f"page {page} is empty")


def asks_for_a_pause(error: BaseException) -> float | None:
    return 7 if "attempt 2" in str(error) else None


@app.activity(retry=Retry(attempts=3, base="2s", jitter=0, delay=asks_for_a_pause))
async def fetch() -> int:
    attempt = current_activity().attempt
    if attempt < 3:
        raise OSError(f"attempt {attempt}")
    return attempt


@app.workflow
async def fetch_twice(ctx: Context) -> int:
    return await fetch()


@app.workflow
async def pay(ctx: Context, customer: str) -> str:
    return await charge(customer)


@app.workflow
async def ship(ctx: Context, article: str) -> str:
    return await pack(article)


@app.workflow
async def show(ctx: Context) -> None:
    await render(7)


@app.workflow
async def signal_to(ctx: Context, run_id: UUID) -> None:
    ctx.signal_run(run_id, "packed")


@app.workflow
async def wait_for_it(ctx: Context) -> None:
    await ctx.wait_for_signal("packed")


@pytest.fixture(autouse=True)
def all_levels(caplog: pytest.LogCaptureFixture) -> None:
    calls.clear()
    caplog.set_level(logging.INFO)


def of_level(caplog: pytest.LogCaptureFixture, level: int) -> list[logging.LogRecord]:
    return [
        each for each in caplog.records if each.levelno == level and each.name == "holdfast.run"
    ]


async def test_each_failed_attempt_of_a_step_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with Environment(app) as env:
        handle = await env.client.start(pay, "ann")
        with pytest.raises(RunFailed):
            await env.result(handle)
    first, last = of_level(caplog, logging.WARNING)
    assert first.getMessage() == (
        f"run {handle.run_id} (pay): attempt 1 of step charge failed: "
        "ConnectionError: the bank refuses ann; next attempt in 2 s"
    )
    assert last.getMessage().endswith("; it is not tried again")
    fields = vars(last)
    assert (fields["run_id"], fields["key"], fields["attempt"]) == (str(handle.run_id), "charge", 2)


async def test_a_failed_run_is_an_error_with_the_traceback_of_the_users_code(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Environment(app) as env:
        handle = await env.client.start(pay, "ann")
        with pytest.raises(RunFailed):
            await env.result(handle)
    (record,) = of_level(caplog, logging.ERROR)
    assert f"run {handle.run_id} (pay) failed: " in record.getMessage()
    line = logging.Formatter().format(record)
    assert 'raise ConnectionError(f"the bank refuses {customer}")' in line
    assert "return await charge(customer)" in line
    assert 'raise ConnectionError(f"the bank refuses {customer}")' in LineFormatter().format(record)
    assert "in charge" in json.loads(JsonFormatter().format(record))["traceback"]


async def test_a_failed_attempt_of_an_activity_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Environment(app) as env:
        handle = await env.client.start(show)
        with pytest.raises(RunFailed):
            await env.result(handle)
    (record,) = of_level(caplog, logging.WARNING)
    text = f"run {handle.run_id}: attempt 1 of activity render failed: ValueError: page 7 is empty"
    assert record.getMessage() == f"{text}; no attempts are left"


async def test_the_warning_of_an_activity_says_when_it_is_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Environment(app) as env:
        await env.run(fetch_twice)
    first, second = of_level(caplog, logging.WARNING)
    assert first.getMessage().endswith("OSError: attempt 1; next attempt in about 2 s")
    assert second.getMessage().endswith("OSError: attempt 2; next attempt in about 7 s")


async def test_log_lines_of_attempts_carry_run_and_attempt() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(AttemptFilter())
    handler.setFormatter(JsonFormatter())
    shop.addHandler(handler)
    try:
        async with Environment(app) as env:
            handle = await env.client.start(ship, "book")
            assert await env.result(handle) == "book"
            shown = await env.client.start(show)
            with pytest.raises(RunFailed):
                await env.result(shown)
            shop.info("outside")
    finally:
        shop.removeHandler(handler)
    first, second, activity, outside = map(json.loads, stream.getvalue().splitlines())
    assert (first["run_id"], first["step"], first["attempt"]) == (str(handle.run_id), "pack", 1)
    assert (second["workflow"], second["key"], second["attempt"]) == ("ship", "pack", 2)
    assert (activity["run_id"], activity["activity"]) == (str(shown.run_id), "render")
    assert "run_id" not in outside


class Unreadable:
    def __str__(self) -> str:
        raise ValueError("not now")


def refers_to_itself() -> dict[str, object]:
    found: dict[str, object] = {}
    found["self"] = found
    return found


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (os.fsdecode(b"\xff.txt"), "\\udcff.txt"),
        (refers_to_itself(), "{'self': {...}}"),
        (Unreadable(), "(no message: str() raised ValueError)"),
    ],
)
def test_no_value_beside_a_message_loses_its_line_or_raises(value: object, shown: str) -> None:
    """A RecursionError would leave the handler and fail the step that logs."""
    fields = {"msg": "a file", "levelno": 20, "levelname": "INFO", "found": value, "size": 7}
    line = json.loads(JsonFormatter().format(logging.makeLogRecord(fields)))
    assert (line["message"], line["found"], line["size"]) == ("a file", shown, 7)


def test_a_message_that_is_not_unicode_is_a_line_of_json() -> None:
    fields = {"msg": "no %s", "args": (os.fsdecode(b"\xff.txt"),), "levelname": "INFO"}
    line = json.loads(JsonFormatter().format(logging.makeLogRecord(fields)))
    assert line["message"] == "no \\udcff.txt"


def test_a_line_of_a_workflow_names_its_run() -> None:
    fields = {"run_id": "1", "workflow": "ship"}
    own = logging.makeLogRecord({"name": "holdfast.workflow", "msg": "x", "levelno": 20} | fields)
    ours = logging.makeLogRecord({"name": "holdfast.run", "msg": "x", "levelno": 20} | fields)
    for record in (own, ours):
        assert AttemptFilter().filter(record)
    assert LineFormatter().format(own).endswith(" [run 1, workflow ship] x")
    assert LineFormatter().format(ours).split(" ", 1)[1] == "x"


def test_a_line_for_people_names_the_attempt() -> None:
    record = logging.makeLogRecord({"msg": "packing", "levelno": logging.INFO})
    record.attempt_of = "[run 1, step pack] "
    assert LineFormatter().format(record).endswith("[run 1, step pack] packing")


async def test_the_error_of_a_run_carries_the_recorded_traceback() -> None:
    async with Environment(app) as env:
        handle = await env.client.start(pay, "ann")
        with pytest.raises(RunFailed) as failed:
            await env.result(handle)
    shown = "".join(traceback.format_exception(failed.value))
    assert "in charge" in shown
    assert "return await charge(customer)" in shown


async def test_the_error_of_a_step_carries_the_recorded_traceback_once() -> None:
    seen: list[str] = []
    other = App("other")

    @other.step(retry=Retry(attempts=1))
    async def fall() -> None:
        raise ValueError("down the stairs")

    @other.workflow
    async def walk(ctx: Context) -> None:
        try:
            await fall()
        except StepFailed as error:
            seen.append("".join(traceback.format_exception(error)))
            raise

    async with Environment(other) as env:
        handle = await env.client.start(walk)
        with pytest.raises(RunFailed) as failed:
            await env.result(handle)
    assert 'raise ValueError("down the stairs")' in seen[0]
    recorded = failed.value.error.format()
    assert recorded.count('raise ValueError("down the stairs")') == 1


async def test_a_signal_to_a_run_that_cannot_receive_it_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The code of the sender gets no answer, so that its replay needs none."""
    missing = uuid4()
    async with Environment(app) as env:
        ended = await env.client.start(show)
        with pytest.raises(RunFailed):
            await env.result(ended)
        await env.advance("1s")
        caplog.clear()
        senders = [await env.client.start(signal_to, to) for to in (ended.run_id, missing)]
        for sender in senders:
            await env.result(sender)
        to_ended, to_missing = [(await env.client.why(each.run_id)).details for each in senders]
    warnings = [each.getMessage() for each in of_level(caplog, logging.WARNING)]
    assert [text.partition(": ")[2] for text in warnings] == [
        f"signal 'packed' was not delivered: run {ended.run_id} has ended",
        f"signal 'packed' was not delivered: run {missing} does not exist",
    ]
    told = f"packed sent to run {ended.run_id}: it was not delivered, because that run had ended"
    assert to_ended[-1] == told
    told = f"packed sent to run {missing}: there is no such run, or retention has removed it since"
    assert to_missing[-1] == told


async def test_a_signal_that_came_before_the_run_ended_is_not_called_undelivered() -> None:
    async with Environment(app) as env:
        waiting = await env.client.start(wait_for_it)
        sender = await env.client.start(signal_to, waiting.run_id)
        await env.result(sender)
        await env.result(waiting)
        details = (await env.client.why(sender.run_id)).details
    assert not [each for each in details if "sent to run" in each]


def test_what_is_logged_cannot_control_a_terminal() -> None:
    """Lines and tabs stay: a traceback has them."""
    record = logging.makeLogRecord({"msg": "no such font: \x1b]0;owned\x07 a\x9bb\rc\x7f\n\tnext"})
    line = LineFormatter().format(record)
    assert line.endswith("font: \\x1b]0;owned\\x07 a\\x9bb\\x0dc\\x7f\n\tnext")
