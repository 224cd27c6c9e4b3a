"""T6: schedules that clients create, change, pause, trigger and backfill."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from holdfast.client import Client
from holdfast.definitions.app import App
from holdfast.errors import (
    ConfigurationError,
    InvalidInput,
    ScheduleExists,
    UnknownQueue,
    UnknownSchedule,
    UnknownWorkflow,
)
from holdfast.runtime.code.context import Context
from holdfast.store.port import Store
from holdfast.types import SCHEDULE_HEADER, NewSchedule, RunTarget, SendTarget, When

from .workflows import tick

app = App("shop")


@app.workflow(queue="mail", priority=1, timeout="1h", retention="7d")
async def report(ctx: Context, kind: str) -> None: ...


async def nightly(client: Client, **options: Any) -> str:
    """Create `shop/nightly`, which starts the report of kind `full`."""
    made = await client.schedules.create("nightly", report, "0 3 * * *", input="full", **options)
    return made.name


async def test_a_schedule_is_created_listed_and_shown(client: Client) -> None:
    created = await client.schedules.create(
        "nightly",
        report,
        "0 3 * * *",
        input="full",
        timezone="Europe/Berlin",
        overlap="buffer_one",
        jitter="30s",
        tags=["reports"],
        note="asked for by finance",
    )
    assert created.name == "shop/nightly"
    assert created.when == When(cron="0 3 * * *", timezone="Europe/Berlin")
    assert (created.policy.overlap, created.policy.jitter_seconds) == ("buffer_one", 30)
    assert (created.input, created.note, created.paused_at) == (
        "full",
        "asked for by finance",
        None,
    )
    target = created.target
    assert (target.name, target.version, target.queue) == ("shop/report", 1, "mail")
    assert (target.priority, target.timeout_seconds, target.tags) == (1, 3600, ("reports",))
    assert target.retention_seconds == 7 * 86400
    assert await client.schedules.get("shop/nightly") == created
    assert await client.schedules.get("nightly") == created
    assert await client.schedules.list() == [created]
    assert await client.schedules.list(app="other") == []


async def test_a_workflow_may_be_given_by_its_name(client: Client) -> None:
    made = await client.schedules.create("often", "bar/report", every="15m", input={"any": 1})
    assert (made.name, made.target.name, made.input) == ("bar/often", "bar/report", {"any": 1})
    with pytest.raises(UnknownWorkflow):
        await client.schedules.create("never", "nothing", every="15m")


async def test_a_schedule_may_publish_or_send(client: Client) -> None:
    """T6. `input` is the payload; a change keeps what it does not name."""
    made = await client.schedules.create(
        "shop/clock", topic="clock.hour", cron="@hourly", input={"n": 1}
    )
    assert (made.name, made.input, made.policy.overlap) == ("shop/clock", {"n": 1}, "allow")
    with pytest.raises(UnknownQueue):
        await client.schedules.create("shop/poll", message_queue="polls", every="15m")
    await client.queues.create("polls", fifo=True)
    await client.schedules.create(
        "shop/poll", message_queue="polls", every="15m", input=2, headers={"a": "b"}
    )
    changed = await client.schedules.update("shop/poll", "@daily", group="eu")
    assert changed.target == SendTarget(
        kind="queue", name="polls", input="2", group="eu", headers={"a": "b"}
    )
    assert (await client.schedules.update("shop/clock", input=[3])).input == [3]
    tick = await client.schedules.trigger("shop/poll", overlap="allow")
    [message] = await client.queues.receive("polls")
    assert (tick.outcome, tick.message_id, message.payload) == ("sent", message.id, 2)


async def test_what_a_sender_cannot_have_is_refused(client: Client) -> None:
    create: Any = client.schedules.create
    with pytest.raises(ConfigurationError, match="one of: a workflow, a topic, a message_queue"):
        await create("shop/nightly", report, "@daily", topic="a", input="full")
    with pytest.raises(ConfigurationError, match="one of: a workflow, a topic, a message_queue"):
        await create("shop/nightly", cron="@daily")
    with pytest.raises(ConfigurationError, match="nightly: queue: an option of runs"):
        await create("shop/nightly", topic="a", cron="@daily", queue="b")
    with pytest.raises(ConfigurationError, match=r"schedule shop/nightly: overlap: .*'allow'"):
        await create("shop/nightly", topic="a", cron="@daily", overlap="buffer_all")
    with pytest.raises(ConfigurationError, match="nightly: group: an option of messages"):
        await create("shop/nightly", report, "@daily", input="full", group="x")
    await create("shop/clock", topic="a", cron="@daily")
    with pytest.raises(ConfigurationError, match="starts no run that could overlap"):
        await client.schedules.trigger("shop/clock", overlap="skip")
    with pytest.raises(ConfigurationError, match="starts no run that could overlap"):
        await client.schedules.backfill("shop/clock", "2025-01-01", "2025-01-02", overlap="skip")
    with pytest.raises(ConfigurationError, match="clock: overlap"):
        await client.schedules.update("shop/clock", overlap="skip")
    with pytest.raises(ConfigurationError, match="clock: tags: an option of runs"):
        await client.schedules.update("shop/clock", tags=["x"])
    await nightly(client)
    with pytest.raises(ConfigurationError, match="nightly: group: an option of messages"):
        await client.schedules.update("shop/nightly", group="x")


async def test_what_cannot_work_is_refused_before_anything_is_written(client: Client) -> None:
    with pytest.raises(ConfigurationError, match=r"schedule shop/nightly: .*hour cannot be '24'"):
        await client.schedules.create("nightly", report, "0 24 * * *", input="full")
    with pytest.raises(InvalidInput, match="schedule nightly: input of"):
        await client.schedules.create("nightly", report, "0 3 * * *", input=7)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"unexpected option catchup: did you mean catch_up\?"):
        await client.schedules.create("nightly", report, "@daily", catchup=1)  # type: ignore[call-overload]
    assert await client.schedules.list() == []


async def test_a_name_is_taken_once(client: Client) -> None:
    await nightly(client)
    with pytest.raises(ScheduleExists, match="there is a schedule shop/nightly"):
        await nightly(client)


async def test_a_name_alone_is_found_if_one_app_has_it(store: Store, client: Client) -> None:
    await nightly(client)
    other = NewSchedule(
        name="bar/nightly", when=When(cron="@daily"), target=RunTarget(name="bar/report")
    )
    await store.create_schedule(other)
    with pytest.raises(InvalidInput, match="name one of bar/nightly, shop/nightly"):
        await client.schedules.get("nightly")
    async with Client(store=store, app=app) as own:
        assert (await own.schedules.get("nightly")).name == "shop/nightly"


@pytest.mark.parametrize(
    "call",
    [
        lambda schedules: schedules.get("none"),
        lambda schedules: schedules.update("shop/none", "@daily"),
        lambda schedules: schedules.delete("shop/none"),
        lambda schedules: schedules.pause("shop/none"),
        lambda schedules: schedules.resume("shop/none"),
        lambda schedules: schedules.trigger("shop/none"),
        lambda schedules: schedules.backfill("shop/none", "2026-01-01", "2026-01-02"),
        lambda schedules: schedules.cancel_backfills("shop/none"),
        lambda schedules: schedules.next_ticks("shop/none"),
        lambda schedules: schedules.ticks("shop/none"),
    ],
)
async def test_a_schedule_that_does_not_exist_is_said_so(client: Client, call: Any) -> None:
    with pytest.raises(UnknownSchedule, match=r"no schedule (shop/)?none"):
        await call(client.schedules)


async def test_a_name_that_is_like_another_is_suggested(client: Client) -> None:
    await nightly(client)
    with pytest.raises(UnknownSchedule, match=r"no schedule nigthly \(did you mean nightly\?\)"):
        await client.schedules.get("nigthly")


async def test_a_change_leaves_what_it_does_not_name(client: Client) -> None:
    await nightly(
        client,
        timezone="Asia/Kolkata",
        start="2030-01-01",
        max_missed=3,
        tags=["a"],
        note="keep",
        timeout="5m",
    )
    changed = await client.schedules.update("nightly", "30 4 * * *", overlap="allow")
    assert changed.when.cron == "30 4 * * *"
    assert (changed.when.timezone, changed.policy.max_missed) == ("Asia/Kolkata", 3)
    assert changed.when.starts_at is not None
    assert (changed.policy.overlap, changed.note, changed.input) == ("allow", "keep", "full")
    assert (changed.target.tags, changed.target.timeout_seconds) == (("a",), 300)

    other = await client.schedules.update("nightly", queue="slow", input="short", start=None)
    assert (other.target.queue, other.input, other.when.starts_at) == ("slow", "short", None)
    assert (other.target.tags, other.target.timeout_seconds, other.target.priority) == (
        ("a",),
        300,
        1,
    )
    interval = await client.schedules.update("nightly", every="1h")
    assert (interval.when.cron, interval.when.every_seconds) == (None, 3600)
    longer = await client.schedules.update("nightly", every="2h", anchor="2030-01-01T00:30")
    assert (await client.schedules.update("nightly", timezone="UTC")).when.anchor == (
        longer.when.anchor
    )


async def test_a_change_that_cannot_work_changes_nothing(store: Store, client: Client) -> None:
    await nightly(client)
    async with Client(store=store, app=app) as own:
        with pytest.raises(InvalidInput, match="schedule shop/nightly: input of report"):
            await own.schedules.update("nightly", input=7)
    with pytest.raises(ConfigurationError, match="unknown time zone"):
        await client.schedules.update("nightly", timezone="Mars/Base")
    assert (await client.schedules.get("nightly")).when == When(cron="0 3 * * *")


async def test_a_paused_schedule_says_when_why_and_is_resumed(client: Client) -> None:
    await nightly(client)
    assert await client.schedules.pause("nightly", note="new disks")
    assert not await client.schedules.pause("nightly")
    paused = await client.schedules.get("nightly")
    assert (paused.note, paused.paused_by, paused.next_tick_at) == ("new disks", "user", None)
    assert paused.paused_at is not None
    assert await client.schedules.resume("nightly")
    assert not await client.schedules.resume("nightly")
    assert (await client.schedules.get("nightly")).paused_at is None


async def test_a_trigger_starts_a_run_that_names_schedule_and_tick(client: Client) -> None:
    await nightly(client, paused=True)
    fired = await client.schedules.trigger("nightly", at="2026-02-03T04:05")
    assert (fired.outcome, fired.origin) == ("started", "trigger")
    assert fired.at == datetime(2026, 2, 3, 4, 5, tzinfo=UTC)
    assert fired.run_id is not None
    run = await client.runs.get(fired.run_id)
    assert (run.full_name, run.input, run.queue) == ("shop/report", "full", "mail")
    assert run.headers[SCHEDULE_HEADER] == "shop/nightly"
    again = await client.schedules.trigger("nightly", at=fired.at)
    assert again.run_id == fired.run_id
    assert [each.run_id for each in await client.schedules.ticks("nightly")] == [fired.run_id]
    assert await client.schedules.ticks("nightly", before=fired.at) == []
    beside = await client.schedules.trigger("nightly")
    assert (beside.outcome, beside.cause) == ("skipped", "overlap")
    assert (await client.schedules.trigger("nightly", overlap="allow")).outcome == "started"


async def test_a_backfill_is_asked_for_once(client: Client) -> None:
    await nightly(client)
    chosen = uuid4()
    begin, end = datetime(2025, 3, 1, tzinfo=UTC), datetime(2025, 3, 3, tzinfo=UTC)
    assert await client.schedules.backfill("nightly", begin, end, backfill_id=chosen)
    assert not await client.schedules.backfill("nightly", begin, end, backfill_id=chosen)
    assert (await client.schedules.get("nightly")).backfills == 1
    assert (await client.schedules.cancel_backfills("nightly")).backfills == 1
    assert (await client.schedules.get("nightly")).backfills == 0
    with pytest.raises(InvalidInput):
        await client.schedules.backfill("nightly", begin, "2099-01-01")
    with pytest.raises(InvalidInput, match="start: not a moment: 'once'"):
        await client.schedules.backfill("nightly", "once", end)


async def test_the_next_ticks_are_those_of_the_expression(client: Client) -> None:
    await nightly(client, timezone="Europe/Berlin", end="2030-01-02", paused=True)
    assert await client.schedules.next_ticks(
        "nightly", after=datetime(2029, 12, 31, tzinfo=UTC)
    ) == [datetime(2029, 12, 31, 2, tzinfo=UTC), datetime(2030, 1, 1, 2, tzinfo=UTC)]
    with pytest.raises(ConfigurationError, match="has no time zone: add one"):
        await client.schedules.next_ticks("nightly", after=datetime(2029, 12, 31))


async def test_a_deleted_schedule_is_gone(client: Client) -> None:
    await nightly(client)
    await client.schedules.delete("nightly")
    assert await client.schedules.list() == []


async def test_lists_continue_after_a_name(client: Client) -> None:
    for name in ("a", "b", "c"):
        await client.schedules.create(name, tick, "@daily")
    page = await client.schedules.list(limit=2)
    assert [each.name for each in page] == ["shop/a", "shop/b"]
    rest = await client.schedules.list(after=page[-1].name)
    assert [each.name for each in rest] == ["shop/c"]
