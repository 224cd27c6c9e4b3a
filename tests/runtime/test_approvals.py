"""Approvals as a run's code sees them. T4."""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypedDict, TypeVar

import msgspec
import pytest
from pydantic import BaseModel

from holdfast import App, Context, RunCancelled
from holdfast.client import Client
from holdfast.errors import ApprovalNotFound, ConfigurationError, InvalidInput
from holdfast.events import (
    APPROVAL_REQUESTED,
    APPROVAL_WITHDRAWN,
    CANCELLED,
    TIMER_FIRED,
    TIMER_SCHEDULED,
    WEBHOOK_CLOSED,
)
from holdfast.runtime.code.approvals import Decision, form_fields
from holdfast.store.port import Store
from holdfast.testing import Environment
from holdfast.types import ANY_END, FormField, Suspend
from tests.runtime.bench import START, Bench, work
from tests.runtime.desk import working

T = TypeVar("T")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Terms:
    discount: float
    count: Annotated[int, msgspec.Meta(title="How many", ge=1)]
    note: str | None
    reason: Literal["volume", "loyalty"] = "volume"
    colour: Colour = Colour.BLUE
    urgent: bool = False


class Reply(TypedDict):
    text: str


class Due(msgspec.Struct):
    amount: Decimal
    day: date | None = None
    at: datetime | None = None


class DueModel(BaseModel):
    amount: Decimal
    day: date | None = None
    at: datetime | None = None


@dataclass
class Made:
    count: int | None
    note: str = field(default_factory=lambda: "made")
    reason: str | None = field(default_factory=lambda: "made")


class Line(NamedTuple):
    text: str
    note: str | None
    colour: Colour = Colour.BLUE
    number: int = 3


class Partly(TypedDict, total=False):
    note: str
    reason: str | None
    count: int | None


@dataclass
class Size(Generic[T]):
    name: Annotated[Literal["small", "large", "extra"] | None, msgspec.Meta(title="Size")]
    count: Literal[3, "many", 1] = 3
    tag: T | None = None


def test_a_decision_is_asked_for_and_waited_for() -> None:
    """T4."""

    async def flow(ctx: Context) -> list[object]:
        decision = await ctx.request_approval("Offer 7", description="big", timeout="1h")
        return [decision.approved, decision.by, decision.feedback, decision.values]

    bench = Bench(flow)
    part = bench.commit()
    assert [e.type for e in part.events] == [APPROVAL_REQUESTED, TIMER_SCHEDULED]
    assert part.has_commands
    due = START + 3_600_000_000
    assert bench.suspend == Suspend(due, (ANY_END,))
    assert bench.details_of(APPROVAL_REQUESTED)[0] == {
        "python": bench.details_of(APPROVAL_REQUESTED)[0]["python"],
        "caught": 2,
        "title": "Offer 7",
        "description": "big",
        "fields": [],
        "timeout_at": due,
    }
    bench.crash()
    bench.settle()
    bench.resume(bench.resolved("approve", by="ann", feedback="fine"))
    bench.settle()
    assert bench.output == [True, "ann", "fine", None]
    assert len(bench.of_type(APPROVAL_REQUESTED)) == 1


def test_a_form_is_its_types_fields() -> None:
    """T4."""
    fields = [msgspec.json.decode(msgspec.json.encode(each)) for each in form_fields(Terms)]
    assert fields == [
        {"name": "discount", "type": "number", "required": True},
        {"name": "count", "type": "number", "required": True, "label": "How many"},
        {"name": "note", "type": "text", "required": False},
        {
            "name": "reason",
            "type": "choice",
            "required": False,
            "choices": ["volume", "loyalty"],
            "default": "volume",
        },
        {
            "name": "colour",
            "type": "choice",
            "required": False,
            "choices": ["red", "blue"],
            "default": "blue",
        },
        {"name": "urgent", "type": "boolean", "required": False, "default": False},
    ]
    assert msgspec.convert(fields, tuple[FormField, ...]) == form_fields(Terms)
    assert [each.type for each in form_fields(Reply)] == ["text"]


def test_the_choices_of_a_literal_stay_in_the_order_of_its_declaration() -> None:
    name, count, _ = form_fields(Size[str])
    assert name.choices == ("small", "large", "extra")
    assert count.choices == (3, "many", 1)


@pytest.mark.parametrize("form", [dict, int, tuple])
def test_a_type_that_is_not_a_form_is_refused(form: type) -> None:
    with pytest.raises(ConfigurationError, match="is not a form"):
        form_fields(form)


def test_a_field_that_nobody_can_fill_in_is_refused() -> None:
    class Deep(msgspec.Struct):
        lines: list[str]

    with pytest.raises(ConfigurationError, match=r"Deep\.lines"):
        form_fields(Deep)


def test_values_come_as_the_forms_type() -> None:
    """T4."""

    async def flow(ctx: Context) -> list[object]:
        decision = await ctx.request_approval("Offer", form=Terms)
        assert decision.values is not None
        return [type(decision.values).__name__, decision.values.note, decision.values.reason]

    bench = Bench(flow)
    bench.settle()
    bench.resume(bench.resolved("approve", values={"discount": 0.5, "count": 2}))
    bench.settle()
    assert bench.output == ["Terms", None, "volume"]


@pytest.mark.parametrize(
    ("form", "expected"), [(Made, ["made", "made", None]), (Partly, [None, None, None])]
)
def test_a_field_that_was_left_empty_gets_the_types_default(
    form: type, expected: list[object]
) -> None:
    async def flow(ctx: Context) -> list[object]:
        decision: Decision[Any] = await ctx.request_approval("Offer", form=form)
        values = msgspec.to_builtins(decision.values)
        return [values.get(name) for name in ("note", "reason", "count")]

    bench = Bench(flow)
    bench.settle()
    bench.resume(bench.resolved("approve"))
    bench.settle()
    assert bench.output == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"text": "a"}, Line("a", None)),
        ({"number": 2, "text": "a"}, Line("a", None, Colour.BLUE, 2)),
        ({"note": "n", "text": "a", "colour": "red"}, Line("a", "n", Colour.RED)),
        ({"number": 2}, None),
    ],
)
def test_a_named_tuple_gets_its_values_by_their_names(
    values: dict[str, object], expected: Line | None
) -> None:
    found = list[Line | None]()

    async def flow(ctx: Context) -> None:
        try:
            found.append((await ctx.request_approval("Offer", form=Line)).values)
        except InvalidInput:
            found.append(None)

    bench = Bench(flow)
    bench.settle()
    bench.resume(bench.resolved("approve", values=values))
    bench.settle()
    assert found == [expected]


def test_a_refusal_needs_no_values() -> None:
    """T4."""

    async def flow(ctx: Context) -> list[object]:
        decision = await ctx.request_approval("Offer", form=Terms)
        return [decision.approved, decision.values]

    bench = Bench(flow)
    bench.settle()
    bench.resume(bench.resolved("approve", approved=False, values=None))
    bench.settle()
    assert bench.output == [False, None]


def test_values_that_do_not_fit_raise_where_they_are_read() -> None:
    async def flow(ctx: Context) -> str:
        try:
            await ctx.request_approval("Offer", form=Terms)
        except InvalidInput as error:
            return str(error)
        return ""

    bench = Bench(flow)
    bench.settle()
    bench.resume(bench.resolved("approve", values={"discount": "much", "count": 2}))
    bench.settle()
    assert "discount" in bench.output


def test_an_approval_that_nobody_decides_in_time_is_withdrawn() -> None:
    """T4. Trap 5. Trap 7. A decision that comes later changes nothing."""

    async def flow(ctx: Context) -> str:
        try:
            await ctx.request_approval("Offer", timeout=10, id="offer")
        except TimeoutError:
            await ctx.wait_for_signal("go")
            return "late"
        return "decided"

    bench = Bench(flow)
    bench.settle()
    bench.now += 11_000_000
    bench.resume()
    part = bench.commit()
    assert [e.type for e in part.events] == [TIMER_FIRED, APPROVAL_WITHDRAWN]
    assert part.events[1].key == "offer"
    assert part.has_commands
    bench.crash()
    bench.settle()
    bench.resume(bench.resolved("offer"), bench.signal("go"))
    bench.settle()
    assert bench.output == "late"
    assert len(bench.of_type(APPROVAL_WITHDRAWN)) == 1


def test_the_log_decides_between_a_decision_and_a_timeout() -> None:
    """Trap 7. A decision that stands in the log before the timer wins, however late the worker."""

    async def flow(ctx: Context) -> bool:
        return (await ctx.request_approval("Offer", timeout=10)).approved

    bench = Bench(flow)
    bench.settle()
    bench.now += 3_600_000_000
    bench.resume(bench.resolved("approve"))
    bench.settle()
    assert bench.output is True
    assert not bench.of_type(TIMER_FIRED)


@pytest.mark.parametrize("is_late", [False, True])
def test_an_approval_that_is_decided_before_its_withdrawal_is_not_withdrawn(is_late: bool) -> None:
    """A cancel comes first, and the decision stands before a worker looks, or before it commits."""

    async def flow(ctx: Context) -> None:
        try:
            await ctx.request_approval("Offer", id="offer")
        finally:
            await work(1)

    bench = Bench(flow)
    bench.settle()
    if is_late:
        bench.resume(bench.cancel_request())
        bench.refuse(bench.resolved("offer"))
    else:
        bench.resume(bench.cancel_request(), bench.resolved("offer"))
    bench.settle()
    bench.crash()
    bench.complete("work", 1)
    bench.settle()
    assert bench.log[-1].type == CANCELLED
    assert not bench.of_type(APPROVAL_WITHDRAWN)


def test_an_approval_that_the_code_gives_up_before_a_decision_in_the_log_is_not_withdrawn() -> None:
    async def flow(ctx: Context) -> str:
        asked = asyncio.create_task(ctx.request_approval("Offer", id="offer"))
        await ctx.wait_for_signal("enough")
        asked.cancel()
        await ctx.wait_for_signal("go")
        return "done"

    bench = Bench(flow)
    bench.settle()
    bench.resume(bench.signal("enough"), bench.resolved("request_approval/offer"))
    bench.settle()
    bench.crash()
    bench.settle()
    bench.resume(bench.signal("go"))
    bench.settle()
    assert bench.output == "done"
    assert not bench.of_type(APPROVAL_WITHDRAWN)


async def test_a_decision_of_a_cancelled_run_is_not_withdrawn(store: Store) -> None:
    """Both come while no worker looks, and each stands in the log once."""
    app = App("offers")

    @app.workflow
    async def offer(ctx: Context) -> None:
        hook = ctx.webhook("paid")
        try:
            await ctx.request_approval("Offer", id="offer")
            await hook.received()
        finally:
            hook.close()

    async with Client(app=app, store=store) as client:
        handle = await client.start(offer)
        async with working(app, store):
            async with asyncio.timeout(30):
                while not await client.approvals.list(handle.run_id):
                    await asyncio.sleep(0.01)
            [hook] = await client.webhooks.list(handle.run_id)
        await handle.cancel()
        assert await client.approvals.decide(handle.run_id, "offer", True)
        assert await client.webhooks.receive(hook.url, b"{}")
        async with working(app, store):
            with pytest.raises(RunCancelled):
                await handle.result(timeout=30)
        log = [each.event.type for each in await handle.log()]
    assert not {APPROVAL_WITHDRAWN, WEBHOOK_CLOSED} & {*log}


async def test_why_names_the_decision_before_the_updates_that_are_handled() -> None:
    app = App("desk")

    @app.workflow
    async def offer(ctx: Context) -> bool:
        ctx.handle_update("amend", lambda: None)
        ctx.handle_update("add", lambda: None)
        asked = asyncio.create_task(ctx.request_approval("Refund?", id="refund"))
        signal = asyncio.create_task(ctx.wait_for_signal("paid"))
        await asyncio.wait({asked, signal}, return_when=asyncio.FIRST_COMPLETED)
        return asked.done()

    async with Environment(app) as env:
        handle = await env.client.start(offer)
        await env.wait_until_idle()
        found = await env.client.why(handle.run_id)
        assert [each.do for each in found.actions] == ["signal", "decide", "update", "update"]
        decide = found.actions[1]
        await env.client.approvals.decide(handle.run_id, decide.name, True, by="ann")
        assert await env.result(handle)


NOON = datetime(2030, 1, 2, 12, tzinfo=UTC)


@pytest.mark.parametrize("form", [Due, DueModel])
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"amount": "12.50"}, ("12.50", None, None)),
        ({"amount": 12.5, "day": "2030-01-02"}, ("12.5", date(2030, 1, 2), None)),
        (
            {"amount": Decimal(7), "day": date(2030, 1, 2), "at": NOON},
            ("7", date(2030, 1, 2), NOON),
        ),
        ({"amount": "1", "day": None, "at": "2030-01-02T13:00+01:00"}, ("1", None, NOON)),
    ],
)
async def test_a_form_takes_dates_moments_and_decimals(
    form: type[Due], values: dict[str, object], expected: tuple[object, ...]
) -> None:
    assert [each.format for each in form_fields(form)] == ["decimal", "date", "date-time"]
    asking = App("asking")

    @asking.workflow
    async def pay(ctx: Context) -> list[object]:
        found = (await ctx.request_approval("Pay?", form=form)).values
        assert found is not None
        return [str(found.amount), found.day == expected[1], found.at == expected[2]]

    async with Environment(asking) as env:
        run = await env.client.start(pay)
        await env.wait_until_idle()
        await env.client.approvals.decide(run.run_id, "approve", True, values=values)
        assert await env.result(run) == [expected[0], True, True]


@pytest.mark.parametrize(
    "values",
    [
        Due(Decimal("12.50"), date(2030, 1, 2), NOON),
        DueModel(amount=Decimal("12.50"), day=date(2030, 1, 2), at=NOON),
        Terms(5.5, 2, None, "loyalty", Colour.BLUE),
        Line("a", None, Colour.BLUE),
    ],
    ids=lambda values: type(values).__name__,
)
async def test_a_decision_takes_a_value_of_the_forms_type(values: object) -> None:
    asking = App("asking")

    @asking.workflow
    async def pay(ctx: Context) -> bool:
        return (await ctx.request_approval("Pay?", form=type(values))).values == values

    async with Environment(asking) as env:
        run = await env.client.start(pay)
        await env.wait_until_idle()
        for wrong in (5, ["a"], "amount"):
            with pytest.raises(InvalidInput, match="by name, or a value of its type, not"):
                await env.client.approvals.decide(run.run_id, "approve", True, values=wrong)
        await env.client.approvals.decide(run.run_id, "approve", True, values=values)
        assert await env.result(run)


async def test_the_error_for_the_id_of_an_approval_of_a_task_names_its_key() -> None:
    asking = App("asking")

    @asking.workflow
    async def pay(ctx: Context) -> None:
        await asyncio.gather(ctx.request_approval("Legal?", id="legal"))

    async with Environment(asking) as env:
        run = await env.client.start(pay)
        await env.wait_until_idle()
        decide = env.client.approvals.decide
        with pytest.raises(ApprovalNotFound, match="mean 'request_approval/legal'") as raised:
            await decide(run.run_id, "legal", True)
        assert raised.value.similar == ("request_approval/legal",)
        with pytest.raises(ApprovalNotFound, match="`holdfast approvals list` names"):
            await decide(run.run_id, "tax", True)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (FormField("f", "text", required=True, format="date"), "a date, such as 2030-12-31"),
        (FormField("f", "text", required=True, format="date-time"), "a date-time, such as 2030"),
        (FormField("f", "text", required=True, format="decimal"), "a decimal, such as 12.50"),
    ],
)
@pytest.mark.parametrize("value", ["", "2030-13-01", "ten", "NaN", None, True, [], {}, object()])
def test_a_field_takes_no_value_of_another_format(
    given: FormField, told: str, value: object
) -> None:
    with pytest.raises(InvalidInput, match=f"field 'f' takes {told}"):
        given.check(value)
