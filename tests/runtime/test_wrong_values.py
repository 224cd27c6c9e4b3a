"""Each argument of each method of Context gets values that it cannot have.

A call answers with an error of holdfast, or is a success: nothing that the code is given makes a
commit of its run fail, or the run stuck.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, cast
from uuid import UUID

import pytest

from holdfast import App, Context
from holdfast.errors import ConfigurationError, HoldfastError, RunFailed
from holdfast.testing import Environment
from tests.unit.test_wrong_values import WRONG, Cart, arguments_of

app = App("shop")
WRONG_HERE: Final = {name: value for name, value in WRONG.items() if name != "text"} | {
    "whole float": 1.0,
    "True": True,
    "vast": 10**400,
}
LEFT_OUT: Final = {"continue_as_new", "serve_entity", "finish_updates"}


@app.step
async def pack(order: object = None) -> int:
    return 1


@app.activity
async def print_label(order: object = None) -> int:
    return 1


@app.workflow
async def ship(ctx: Context, order: object = None) -> int:
    return 1


async def handle(*given: object) -> int:
    return 1


NEEDED: Final[dict[str, Any]] = {
    "name": "s",
    "fn": pack,
    "duration": 1,
    "moment": datetime(2026, 1, 2, tzinfo=UTC),
    "workflow": ship,
    "run_id": UUID(int=5),
    "payload": 1,
    "pattern": "a.b",
    "title": "t",
    "value": 1,
    "attributes": {"a": 1},
    "cls": Cart,
    "key": "ann",
    "handler": handle,
    "timeout": 1,
    "id": "p",
}
METHODS: Final = [
    name
    for name, _ in inspect.getmembers(Context, inspect.isfunction)
    if not name.startswith("_") and name not in LEFT_OUT
]


def calls_of(name: str) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    """Yield calls of a method with one wrong value each: what is wrong, and the arguments."""
    method = getattr(Context, name)
    kinds = inspect.signature(method).parameters
    arguments = {"timeout": False, **arguments_of(f"context.{name}", method)}
    arguments = {each: must for each, must in arguments.items() if each != "args"}
    known = NEEDED | ({"name": "shop/print_label"} if name == "activity" else {})
    must = {each: known[each] for each, is_needed in arguments.items() if is_needed}
    if "timeout" in kinds or name.endswith("child"):
        must["timeout"] = 1
    else:
        del arguments["timeout"]
    for argument in arguments:
        for what, wrong in WRONG_HERE.items():
            if (argument, what) != ("timeout", "None"):  # that would wait for ever
                given = must | {argument: wrong}
                first = [each for each in given if each in kinds and kinds[each].kind == 0]
                yield f"{name}({argument}={what})", [given.pop(each) for each in first], given


@app.workflow
async def call_wrongly(ctx: Context, name: str) -> list[str]:
    wrong = list[str]()
    for what, args, given in calls_of(name):
        try:
            found = getattr(ctx, name)(*args, **given)
            if inspect.isawaitable(found):
                await found
        except (HoldfastError, TimeoutError):
            continue
        except Exception as error:
            if "is an option of ctx.child" not in str(error):
                wrong.append(f"{what}: {type(error).__name__}: {error}")
    await pack()
    return wrong


@pytest.mark.parametrize("name", METHODS)
async def test_a_wrong_value_in_a_workflow_is_refused_by_an_error_of_holdfast(name: str) -> None:
    async with Environment(app) as env:
        assert await env.run(call_wrongly, name) == []


WAITS: Final[dict[str, Callable[[Any], Any]]] = {
    "signal": lambda ctx: ctx.wait_for_signal("packed", type=7),
    "event": lambda ctx: ctx.wait_for_event("orders.*", type=7),
    "webhook": lambda ctx: ctx.webhook("paid", type=7).received(),
}


@app.workflow
async def wait_wrongly(ctx: Context, what: str) -> object:
    return await WAITS[what](ctx)


@pytest.mark.parametrize("what", WAITS)
async def test_a_type_that_nothing_can_have_is_not_waited_for(what: str) -> None:
    """The code failed once what it waited for had come, which may take a week."""
    async with Environment(app) as env:
        with pytest.raises(RunFailed, match="Type '7' is not supported"):
            await env.run(wait_wrongly, what)


@app.workflow
async def add_up(ctx: Context) -> int:
    added = list[int]()
    ctx.handle_update("add", added.append)
    await ctx.wait_for_signal("done")
    return len(added)


async def test_a_type_that_no_answer_can_have_sends_no_update() -> None:
    """The update was carried out, and its answer could not be read."""
    async with Environment(app) as env:
        handle = await env.client.start(add_up)
        with pytest.raises(ConfigurationError, match="Type '7' is not supported"):
            await handle.update("add", 1, type=cast("Any", 7))
        await handle.signal("done")
        assert await env.result(handle) == 0
