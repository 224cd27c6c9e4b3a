"""T6: schedules in an app's code, and what is checked when they are defined."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast import App, Context, InvalidInput
from holdfast.errors import ConfigurationError, InvalidName
from holdfast.types import RunTarget, SendTarget, TickPolicy, When


@dataclass
class Report:
    kind: str


def make() -> tuple[App, Any]:
    app = App("shop")

    @app.workflow(queue="mail", priority=1, timeout="1h", retention="7d", version=3)
    async def send_report(ctx: Context, report: Report) -> None: ...

    return app, send_report


def test_a_decorator_above_a_workflow_schedules_it_and_gives_it_back() -> None:
    app = App("shop")

    @app.schedule("0 9 * * 1-5", timezone="Europe/Berlin", input=Report("daily"))
    @app.schedule("@weekly", name="weekly", input=Report("weekly"))
    @app.workflow
    async def send_report(ctx: Context, report: Report) -> None: ...

    assert send_report is app.latest("send_report")
    assert list(app.schedules) == ["shop/weekly", "shop/send_report"]
    new = app.schedules["shop/send_report"].new
    assert new.when == When(cron="0 9 * * 1-5", timezone="Europe/Berlin")
    assert new.target.input == '{"kind":"daily"}'


def test_a_run_has_the_options_of_its_workflow_unless_others_are_given() -> None:
    app, send_report = make()
    plain = app.schedule(send_report, "@daily", input=Report("x"))
    assert plain.new.target == RunTarget(
        name="shop/send_report",
        version=3,
        input='{"kind":"x"}',
        queue="mail",
        priority=1,
        timeout_seconds=3600,
        retention_seconds=7 * 86400,
    )
    other = app.schedule(
        send_report,
        every="15m",
        name="often",
        input=Report("x"),
        queue="fast",
        priority=0,
        timeout="1m",
        retention="1d",
        tags=["a"],
        headers={"h": "1"},
    )
    assert other.new.when == When(every_seconds=900)
    assert other.new.target == RunTarget(
        name="shop/send_report",
        version=3,
        input='{"kind":"x"}',
        queue="fast",
        priority=0,
        timeout_seconds=60,
        retention_seconds=86400,
        tags=("a",),
        headers={"h": "1"},
    )


def test_a_flow_can_be_scheduled() -> None:
    app = App("shop")
    flow = app.flow("analyze", input=int, version=2)
    target = app.schedule(flow, "@hourly", input=7).new.target
    assert (target.kind, target.name, target.version, target.input) == (
        "flow",
        "shop/analyze",
        2,
        "7",
    )


def test_policies_are_read_from_the_options() -> None:
    app, send_report = make()
    assert app.schedule(send_report, "@daily", input=Report("x")).new.policy == TickPolicy()
    new = app.schedule(
        send_report,
        "@daily",
        name="other",
        input=Report("x"),
        overlap="buffer_one",
        catch_up="2h",
        max_missed=5,
        jitter="30s",
        bucket_retention="7d",
        note="ask finance before changing it",
        paused=True,
    ).new
    assert new.policy == TickPolicy(
        overlap="buffer_one",
        catch_up_seconds=7200,
        max_missed=5,
        jitter_seconds=30,
        bucket_retention_seconds=7 * 86400,
    )
    assert (new.note, new.paused) == ("ask finance before changing it", True)


def test_the_next_ticks_can_be_asked_for() -> None:
    app, send_report = make()
    schedule = app.schedule(send_report, "0 3 * * *", input=Report("x"), end="2030-01-02")
    assert schedule.next_ticks(5, after=datetime(2029, 12, 31, tzinfo=UTC)) == [
        datetime(2029, 12, 31, 3, tzinfo=UTC),
        datetime(2030, 1, 1, 3, tzinfo=UTC),
    ]


@pytest.mark.parametrize(
    ("cron", "options", "message"),
    [
        ("60 * * * *", {}, "the minute cannot be '60'; it may be 0 to 59"),
        (None, {}, "needs a cron expression or every="),
        ("@daily", {"every": "1h"}, "needs a cron expression or every="),
        ("@daily", {"timezone": "Europe/Berlim"}, "timezone: unknown time zone"),
        ("@daily", {"overlap": "queue"}, "overlap: it is skip, buffer_one, .* not 'queue'"),
        ("@daily", {"max_missed": -1}, "max_missed: a whole number from 0 to 1,000 is needed"),
        ("@daily", {"max_missed": True}, "max_missed: a whole number"),
        ("@daily", {"catch_up": "soon"}, "catch_up: not a duration: 'soon'"),
        ("@daily", {"jitter": -1}, "jitter: not a duration"),
        ("@daily", {"priority": 9}, "priority: a whole number from 0"),
        ("@daily", {"queue": "a b"}, "'a b' is not a name for a queue"),
        ("@daily", {"tags": "one"}, "tags are several texts"),
    ],
)
def test_an_option_that_cannot_work_is_refused_with_the_schedules_name(
    cron: str | None, options: dict[str, Any], message: str
) -> None:
    app, send_report = make()
    with pytest.raises(ConfigurationError, match=f"^schedule shop/mine: .*{message}"):
        app.schedule(send_report, cron, name="mine", input=Report("x"), **options)
    assert not app.schedules


def test_a_schedule_may_publish_or_send() -> None:
    """It starts no run: it has no workflow, and its ticks cannot overlap."""
    app = App("shop")
    clock = app.schedule("@hourly", topic="clock.hour", input=Report("full"))
    assert (clock.full_name, clock.definition) == ("shop/clock.hour", None)
    assert clock.new.target == SendTarget(kind="topic", name="clock.hour", input='{"kind":"full"}')
    assert clock.new.policy == TickPolicy(overlap="allow")
    poll = app.schedule(
        every="15m",
        message_queue="polls",
        name="poll",
        group="eu",
        priority=1,
        headers={"a": "b"},
        jitter="30s",
    )
    assert poll.new.target == SendTarget(
        kind="queue", name="polls", group="eu", priority=1, headers={"a": "b"}
    )
    assert poll.new.policy == TickPolicy(overlap="allow", jitter_seconds=30)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "a b"}, "'a b' is not a topic"),
        ({"topic": "a", "message_queue": "b"}, "a topic or a message_queue, not both"),
        ({"topic": "a", "overlap": "skip"}, "starts no run that could overlap.*not 'skip'"),
        ({"message_queue": "a", "overlap": "buffer_one"}, "sends to a message queue starts no run"),
        ({"topic": "a", "jitter": "1m"}, "jitter: an event is published at its tick"),
        ({"topic": "a", "group": "x"}, "group: an option of messages"),
        ({"message_queue": "a b"}, "'a b' is not a name for a queue"),
        ({"message_queue": "a", "priority": 9}, "priority: a whole number from 0"),
    ],
)
def test_a_sender_that_cannot_work_is_refused_with_its_name(
    options: dict[str, Any], message: str
) -> None:
    app, _ = make()
    schedule: Any = app.schedule
    with pytest.raises(ConfigurationError, match=f"^schedule shop/mine: .*{message}"):
        schedule("@daily", name="mine", **options)
    assert not app.schedules


def test_a_sender_has_no_workflow_and_no_options_of_runs() -> None:
    app, send_report = make()
    schedule: Any = app.schedule
    with pytest.raises(ConfigurationError, match="starts a workflow, publishes or sends: give"):
        schedule(send_report, "@daily", topic="a")
    with pytest.raises(TypeError, match="unexpected option tags"):
        schedule("@daily", topic="a", tags=["x"])


def test_an_input_that_does_not_fit_is_refused() -> None:
    app, send_report = make()
    with pytest.raises(InvalidInput, match=r"^schedule shop/send_report: input of"):
        app.schedule(send_report, "@daily", input=5)
    with pytest.raises(InvalidInput, match=r"^schedule shop/send_report: input of"):
        app.schedule(send_report, "@daily")


def test_a_name_is_taken_once() -> None:
    app, send_report = make()
    app.schedule(send_report, "@daily", input=Report("x"))
    with pytest.raises(ConfigurationError, match=r"shop/send_report is defined twice.*name=…"):
        app.schedule(send_report, "@hourly", input=Report("x"))
    with pytest.raises(InvalidName, match="'a/b' is not a name for a schedule"):
        app.schedule(send_report, "@hourly", name="a/b", input=Report("x"))


def test_an_unknown_option_is_refused_with_one_that_is_like_it() -> None:
    app, send_report = make()
    with pytest.raises(TypeError, match=r"unexpected option time_zone: did you mean timezone\?"):
        app.schedule(send_report, "@daily", time_zone="UTC")


def test_a_decorator_in_another_place_says_where_it_belongs() -> None:
    app = App("shop")
    wrong: Any = app.schedule("@daily")

    async def plain(ctx: Context) -> None: ...

    with pytest.raises(ConfigurationError, match=r"write @app.schedule\(…\) above @app.workflow"):
        wrong(plain)
    forgotten: Any = app.schedule
    with pytest.raises(ConfigurationError, match=r"above @app.workflow"):
        forgotten(plain)
    with pytest.raises(ConfigurationError, match="one cron expression, not '@daily' and '@weekly'"):
        forgotten("@daily", "@weekly")
