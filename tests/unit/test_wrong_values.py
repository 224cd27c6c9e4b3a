"""Each argument of each method of the client gets values that it cannot have.

The methods and their arguments are found by their signatures, so a new one is called as well. The
answer is an error of holdfast or a success: no error of Python from within.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, get_args
from uuid import UUID

import pytest

from holdfast import App, Context, Limit
from holdfast.client import Client, Outgoing
from holdfast.client.messaging import Signal
from holdfast.client.schedules import CreateScheduleOptions
from holdfast.definitions.starts import StartAndWaitOptions, StartManyOptions, StartOptions
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.store.memory import MemoryStore
from holdfast.types import Receipt

app = App("shop")


@app.workflow
async def checkout(ctx: Context, order: dict[str, int] | None = None) -> int:
    return 1


@app.entity
@dataclass
class Cart:
    items: int = 0


WRONG: Final[dict[str, object]] = {
    "None": None,
    "zero": 0,
    "minus": -1,
    "huge": 2**64,
    "half": 1.5,
    "nan": float("nan"),
    "empty": "",
    "text": "abc",
    "NUL": "a\0b",
    "surrogate": "a\ud800",
    "bytes": b"abc",
    "naive": datetime(2026, 1, 1),
    "long ago": datetime(1, 1, 1, tzinfo=UTC),
    "list": ["a", 1, None],
    "names by number": {1: 2},
    "triple": ("a", "b", "c"),
    "object": object(),
}
# What ends the client or deletes runs; what is an object, or says how long to wait.
LEFT_OUT: Final = {"client.open", "client.close", "retention.sweep", "retention.batches"}
NOT_GIVEN: Final = {"self", "connection", "progress", "timeout", "wait"}
OPTIONS: Final = {
    "client.start": StartOptions,
    "client.start_many": StartManyOptions,
    "client.run": StartAndWaitOptions,
    "schedules.create": CreateScheduleOptions,
}


# Calls need one of several arguments, or are to return at once.
ONE_OF: Final = {
    "delay": ("handle.reschedule", "runs.reschedule", "runs.reschedule_all", "messages.change"),
    "queue": ("limits.set", "limits.remove"),
    "wait": ("client.run",),
}


def needed(ended: UUID) -> dict[str, dict[str, Any]]:
    """Return what calls need by name beside the wrong value. The run has ended: nothing waits."""
    receipts = [Receipt(1, UUID(int=2), 1)]
    of_run = {"run": ended, "workflow": checkout, "name": "s", "where": [ended], "key": "k"}
    queue = {"queue": "plain", "name": "plain", "message_id": 1, "payload": 1, "error": "e"}
    return {
        "activities": {"token": "x", "error": "e"},
        "approvals": of_run | {"approved": True},
        "archive": of_run,
        "builds": {"runs": [ended], "build": "b1", "from_build": "b2", "percent": 10},
        "client": of_run | {"cls": Cart, "inputs": [None], "signals": [Signal(ended, "s")]},
        "client.run": {"workflow": checkout, "wait": 0},
        "entities": {"cls": Cart, "key": "ann"},
        "flows": {"app": app, "flow": "f"},
        "handle": {"name": "s", "delay": 60},
        "limits": {"limit": Limit(5), "queue": "mail"},
        "limits.remove": {"limit": Limit, "queue": "mail"},
        "messages": queue,
        "messages.change": queue | {"delay": 60},
        "queues": queue | {"messages": receipts, "visibility": 5},
        "queues.send_many": {"queue": "plain", "messages": [Outgoing(1)]},
        "runs": of_run | {"beginning": "0", "by": "state", "attributes": {"a": 1}, "delay": 60},
        "schedules": {"name": "nightly", "start": "2025-11-01", "end": "2025-11-02"},
        "schedules.create": {"name": "new", "workflow": checkout, "cron": "@daily"},
        "topics": {"topic": "a.b", "pattern": "a.b", "workflow": checkout, "subscription_id": 9},
        "webhooks": {"url": "https://x/", "run": ended},
        "workflows": {"workflow": checkout},
    }


def arguments_of(name: str, method: Callable[..., Any]) -> dict[str, bool]:
    """Return the names of all that a method takes, and whether it must be given."""
    found: dict[str, bool] = {}
    for each in inspect.signature(method).parameters.values():
        if each.kind is not each.VAR_KEYWORD:
            found[each.name] = each.default is each.empty and each.kind is not each.VAR_POSITIONAL
            continue
        typed = eval(each.annotation, vars(sys.modules[method.__module__]))  # "Unpack[Options]"
        for options in (OPTIONS[name],) if name in OPTIONS else get_args(typed):
            found |= dict.fromkeys(getattr(options, "__annotations__", ()), False)
    return {each: must for each, must in found.items() if each not in NOT_GIVEN}


def calls_of(name: str, group: object, given: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield calls of a method with one wrong value each: what is wrong, the call, its arguments."""
    arguments = arguments_of(name, getattr(type(group), name.partition(".")[2]))
    must = {each: given[each] for each, is_needed in arguments.items() if is_needed}
    must |= {each: given[each] for each, calls in ONE_OF.items() if name in calls}
    for argument in arguments:
        if argument == "args":
            continue
        for what, wrong in WRONG.items():
            call = getattr(group, name.partition(".")[2])
            yield f"{name}({argument}={what})", call, must | {argument: wrong}


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with Client(store=MemoryStore(), app=app) as client:
        yield client


async def make(call: Callable[..., Any], given: dict[str, Any]) -> None:
    """Make a call to its end."""
    found = call(**given)
    if inspect.isasyncgen(found):
        async for _ in found:
            pass
    elif inspect.isawaitable(found):
        await found


async def outcome(call: Callable[..., Any], given: dict[str, Any]) -> Exception | None:
    """Make a call to its end. Return the error that it should not have raised."""
    try:
        await make(call, given)
    except HoldfastError:
        pass
    except Exception as error:
        is_ours = isinstance(error, TypeError) and "are options of" in str(error)
        return None if is_ours else error
    return None


GROUPS: Final = [name for name in vars(Client()) if not name.startswith("_")]


@pytest.mark.parametrize("of", [*GROUPS, "client", "handle"])
async def test_a_wrong_value_is_refused_by_an_error_of_holdfast(client: Client, of: str) -> None:
    handle = await client.start(checkout, {"a": 1}, key="k")
    await handle.terminate()
    await client.queues.create("plain")
    await client.schedules.create("nightly", checkout, "0 3 * * *")
    group: object = {"client": client, "handle": handle}.get(of) or getattr(client, of)
    found, wrong = needed(handle.run_id), list[str]()
    for method, _ in inspect.getmembers(type(group), inspect.isfunction):
        name = f"{of}.{method}"
        if method.startswith("_") or name in LEFT_OUT:
            continue
        given = found.get(name) or found.get(of, {})
        for what, call, arguments in calls_of(name, group, given):
            if (error := await outcome(call, arguments)) is not None:
                wrong.append(f"{what}: {type(error).__name__}: {error}")
    assert wrong == []


ANSWERS: Final = {
    "activities.fail": "retryable",
    "approvals.decide": "approved",
    "builds.promote": "force",
    "flows.compile": "replace",
    "flows.delete": "force",
    "handle.stream_items": "restarts",
    "limits.remove": "units",
    "queues.create": "fifo",
    "queues.nack": "counted",
    "runs.cancel_all": "dry_run",
    "runs.list": "payloads",
    "runs.reschedule": "no_deadline",
    "runs.retry": "failed_steps",
    "topics.subscribe": "allow_inner",
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_a_text_is_neither_yes_nor_no(client: Client, name: str) -> None:
    """`force="no"` was a yes."""
    handle = await client.start(checkout)
    of, _, method = name.partition(".")
    group, found = handle if of == "handle" else getattr(client, of), needed(handle.run_id)
    given, call = found.get(name) or found[of], getattr(group, method)
    must = {each: given[each] for each, is_needed in arguments_of(name, call).items() if is_needed}
    must |= {each: given[each] for each, calls in ONE_OF.items() if name in calls}
    with pytest.raises(ConfigurationError, match=f"{ANSWERS[name]} is True or False, not 'no'"):
        await make(call, {**must, ANSWERS[name]: "no"})
