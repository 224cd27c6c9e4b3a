"""A field with a default that is added to a type under a run is a change that fits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec
import pytest

from holdfast import App, Context
from holdfast.events import ACTIVITY_SCHEDULED, CHILD_STARTED, SIGNAL_SENT
from tests.runtime.bench import Bench, Code


@dataclass
class Parcel:
    article: str
    weight: int = 1


@dataclass
class NewParcel:
    article: str
    weight: int = 1
    note: str = ""


def shop(parcel: Any, article: str = "lamp", declared: Any = None, **more: Any) -> tuple[App, Code]:
    """Return an app and code that gives a parcel to all that a run can call.

    `declared` is the type that the functions declare, that of the parcel without it.
    """
    app = App("shop")

    async def send(it: Any, days: int = 1) -> int:
        raise AssertionError("the test gives the results")

    async def delivery(ctx: Context, it: Any) -> int:
        raise AssertionError("the test gives the results")

    send.__annotations__["it"] = delivery.__annotations__["it"] = declared or parcel
    send_step, send_activity = app.step(name="pack")(send), app.activity(name="send")(send)
    child = app.workflow(name="delivery")(delivery)

    async def flow(ctx: Context) -> object:
        it = parcel(article, **more)
        ctx.signal_run(UUID(int=1), "parcel", it)
        activity, started = send_activity(it, days=2), child(it)
        packed = await send_step(it)
        again = await send_step(days=3, it=it)
        return [packed, again, await activity, await started]

    return app, flow


def sent(declared: Any = None) -> Bench:
    """A run that has packed once, failed once, and sent."""
    app, code = shop(Parcel, declared=declared)
    bench = Bench(code, registry=app.registry)
    bench.settle()
    bench.complete("pack", 1)
    bench.settle()
    bench.fail("pack#2", OSError("no paper"), retry_in=30)
    bench.settle()
    return bench


@pytest.mark.parametrize("declared", [None, Any, object, NewParcel | str])
def test_a_run_continues_with_types_that_got_a_field_with_a_default(declared: Any) -> None:
    bench = sent(declared)
    app, code = shop(NewParcel, declared=declared)
    bench.registry = app.registry
    bench.now += 60_000_000
    bench.crash(code)
    assert bench.attempts == [("pack#2", 2)]
    bench.complete("pack#2", 2)
    bench.settle()
    bench.resume(
        bench.activity_completed("send", 3, "shop/send"), bench.child_completed("delivery", 4)
    )
    bench.settle()
    assert bench.output == [1, 2, 3, 4]
    ordered = (SIGNAL_SENT, ACTIVITY_SCHEDULED, CHILD_STARTED)
    assert [len(bench.of_type(kind)) for kind in ordered] == [1, 1, 1]


@pytest.mark.parametrize(
    ("article", "more"), [("vase", {}), ("lamp", {"note": "fragile"}), ("lamp", {"weight": 2})]
)
def test_other_values_are_other_arguments(article: str, more: dict[str, Any]) -> None:
    bench = sent()
    app, code = shop(NewParcel, article, **more)
    bench.registry = app.registry
    bench.crash(code)
    assert "with other arguments in the log" in str(bench.stuck)
    assert bench.starts == []


def asking(*added: tuple[str, Any, Any]) -> Code:
    """Code that asks for a form with a field, and with those that are added."""
    fields: list[Any] = [
        ("discount", int),
        *(each[: 3 if each[2] is not ... else 2] for each in added),
    ]
    form = msgspec.defstruct("Terms", fields, kw_only=True)

    async def code(ctx: Context) -> object:
        decision = await ctx.request_approval("Offer", form=form)
        return msgspec.to_builtins(decision.values)

    return code


@pytest.mark.parametrize("is_decided", [False, True])
@pytest.mark.parametrize(
    ("added", "filled"),
    [
        ([("note", str, "none")], {"note": "none"}),
        ([("note", str | None, ...)], {"note": None}),
        ([("note", str, ""), ("days", int, 2), ("gift", bool, False)],
         {"note": "", "days": 2, "gift": False}),
        ([("note", str, ...)], None),
        ([(name, int, 0) for name in "abcd"], None),
    ],
)  # fmt: skip
def test_a_form_gets_fields_that_may_be_left_empty(
    added: list[tuple[str, Any, Any]], filled: dict[str, Any] | None, is_decided: bool
) -> None:
    bench = Bench(asking())
    bench.settle()
    decision = bench.resolved("approve", values={"discount": 5})
    if is_decided:
        bench.log.append(decision)
    bench.claim(asking(*added))
    if filled is None:
        assert "a call of approval 'Offer' with other arguments in the log" in str(bench.stuck)
        return
    if not is_decided:
        bench.settle()
        bench.resume(decision)
    bench.settle()
    assert bench.output == {"discount": 5, **filled}


def test_a_field_that_a_form_loses_is_another_form() -> None:
    bench = Bench(asking(("note", str, "none")))
    bench.settle()
    bench.claim(asking())
    assert "with other arguments in the log" in str(bench.stuck)
