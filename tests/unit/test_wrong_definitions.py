"""Each argument of what a program declares gets values that it cannot have.

The arguments are found by their signatures, so a new one is tried as well. What is wrong is refused
where it is written, by an error of holdfast that names the argument: not by a worker, days later.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, get_args

import asyncpg
import pytest

from holdfast import (
    Ageing,
    App,
    Batch,
    Client,
    Context,
    Database,
    Debounce,
    Fairness,
    Flow,
    Limit,
    Rate,
    Retry,
    Singleton,
    SyncClient,
    Throttle,
    local,
)
from holdfast.database.resolve import Connecting
from holdfast.definitions import alerts
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.server import Server
from holdfast.store.memory import MemoryStore
from holdfast.testing import Environment
from holdfast.worker import Worker, WorkerOptions
from tests.unit.test_wrong_values import WRONG

WRONG_HERE: Final = WRONG | {
    "no": "no",
    "True": True,
    "False": False,
    "endless": float("inf"),
    "vast": 10**400,
    "nothing": [],
    "no names": {},
}


def pack() -> int:
    return 1


def count(clicks: int) -> None: ...


async def ship(ctx: Context, order: dict[str, int] | None = None) -> int:
    return 1


async def book(connection: asyncpg.Connection, room: int) -> None: ...


def shop() -> tuple[App, Flow[Any]]:
    app = App("shop")
    app.workflow(name="known")(ship)
    return app, app.flow("boxes")


def of_app(method: str, decorated: object = None) -> Callable[..., object]:
    """Return what calls a method of an app; it is a decorator if something is decorated."""

    def call(**given: Any) -> object:
        made = getattr(shop()[0], method)(**given)
        return made if decorated is None else made(decorated)

    return call


def with_app(cls: Callable[..., object]) -> Callable[..., object]:
    return lambda **given: cls(**{"app": shop()[0], **given})


CALLS: Final[dict[str, tuple[Any, Callable[..., object], dict[str, Any]]]] = {
    "App": (App, App, {"name": "shop"}),
    "app.step": (App.step, of_app("step", pack), {}),
    "app.activity": (App.activity, of_app("activity", pack), {}),
    "app.workflow": (App.workflow, of_app("workflow", ship), {}),
    "app.job": (App.job, of_app("job", pack), {}),
    "app.transaction": (App.transaction, of_app("transaction", book), {}),
    "app.consumer": (App.consumer, of_app("consumer", count), {"queue": "mail"}),
    "app.message_queue": (App.message_queue, of_app("message_queue"), {"name": "mail"}),
    "app.queue": (App.queue, of_app("queue"), {"name": "mail"}),
    "app.flow": (App.flow, of_app("flow"), {"name": "parts"}),
    "app.alert": (App.alert, of_app("alert"), {"name": "bad", "when": alerts.failed()}),
    "flow.step": (Flow.step, lambda **given: shop()[1].step(**given)(pack), {}),
    "alerts.failed": (alerts.failed, alerts.failed, {}),
    "alerts.stuck": (alerts.stuck, alerts.stuck, {}),
    "alerts.backlog": (alerts.backlog, alerts.backlog, {}),
    "alerts.slow": (alerts.slow, alerts.slow, {"p95": 5}),
    "Retry": (Retry, Retry, {}),
    "Limit": (Limit, Limit, {"most": 3}),
    "Rate": (Rate, Rate, {"most": 3, "per": "1m"}),
    "Fairness": (Fairness, Fairness, {"key": "input.a"}),
    "Ageing": (Ageing, Ageing, {"per": 5}),
    "Batch": (Batch, Batch, {"size": 5}),
    "Debounce": (Debounce, Debounce, {"quiet": 5}),
    "Singleton": (Singleton, Singleton, {}),
    "Throttle": (Throttle, Throttle, {"limit": 3, "per": 5}),
    "Database": (Database, Database, {"url": "postgresql://db/shop"}),
    "WorkerOptions": (WorkerOptions, WorkerOptions, {}),
    "Client": (Client, Client, {}),
    "SyncClient": (SyncClient, SyncClient, {}),
    "Environment": (Environment, with_app(Environment), {}),
}
# What is read when the database is opened; what is an object that programs pass on.
NOT_GIVEN: Final = {"self", "fn", "database", "redis", "schema", "store", "plan"}


def arguments_of(of: Any) -> dict[str, object]:
    """Return all that may be given by name, with the defaults."""
    found = dict[str, object]()
    for each in inspect.signature(of).parameters.values():
        if each.kind is each.VAR_KEYWORD:
            typed = eval(each.annotation, vars(sys.modules[of.__module__]))  # "Unpack[Options]"
            found |= dict.fromkeys(get_args(typed)[0].__annotations__)
        elif each.kind is not each.VAR_POSITIONAL:
            found[each.name] = each.default
    return {name: default for name, default in found.items() if name not in NOT_GIVEN}


def wrong_about(name: str, default: object, what: str, error: Exception | None) -> str | None:
    """Return what is wrong about how a value was taken, None if nothing is."""
    if error is not None and not isinstance(error, HoldfastError):
        return f"{type(error).__name__}: {error}"
    if error is None:
        must_refuse = isinstance(default, bool) and what not in ("True", "False")
        must_refuse |= isinstance(default, int | float) and what in ("nan", "vast", "no")
        must_refuse |= name in ("retry", "options", "app") and what != "None"
        must_refuse |= (name, what) == ("input", "text")
        must_refuse |= what == "object" or (what in ("NUL", "surrogate") and "database" not in name)
        return "taken" if must_refuse else None
    return None


def tries(call: Callable[..., object], of: Any, given: dict[str, Any]) -> Iterator[str]:
    for name, default in arguments_of(of).items():
        for what, wrong in WRONG_HERE.items():
            found: Exception | None = None
            try:
                call(**given | {name: wrong})
            except Exception as error:
                found = error
            if (bad := wrong_about(name, default, what, found)) is not None:
                yield f"{name}={what}: {bad}"


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_value_is_refused_where_it_is_declared(name: str) -> None:
    of, call, given = CALLS[name]
    call(**given)
    assert list(tries(call, of, given)) == []


@pytest.mark.parametrize("retry", [0, False, "", [], {}])
@pytest.mark.parametrize("method", ["step", "activity", "job", "transaction", "consumer"])
def test_a_retry_that_counts_as_false_is_not_that_of_the_app(method: str, retry: object) -> None:
    """`retry=0` and `retry=False` were three attempts."""
    given = {"queue": "mail"} if method == "consumer" else {}
    with pytest.raises(ConfigurationError, match="retry must be a Retry"):
        of_app(method, book if method == "transaction" else pack)(retry=retry, **given)


@pytest.mark.parametrize("hosts", ["", "shop.example", None, 0, [b"shop.example"]])
def test_hosts_of_a_server_are_several(hosts: Any) -> None:
    """None and an empty text let every host pass, any other text none."""
    with pytest.raises(HoldfastError, match="hosts"):
        Server(store=MemoryStore(), auth=lambda request: None, hosts=hosts)


@pytest.mark.parametrize("wrong", [0, 1, "no", None, b"yes"])
def test_a_server_is_read_only_or_not(wrong: Any) -> None:
    """`read_only=None`, of a setting that is missing, was not read-only."""
    with pytest.raises(ConfigurationError, match="read_only is True or False"):
        Server(store=MemoryStore(), auth=lambda request: None, read_only=wrong)


@pytest.mark.parametrize("wrong", [0, False, App("shop"), b"postgresql://me:secret@db/shop", [1]])
async def test_a_database_is_a_text(wrong: Any) -> None:
    """`Client(app)` was an AttributeError, and 0 was the embedded database."""
    with pytest.raises(ConfigurationError, match="database is a str, not an object of") as raised:
        async with Client(wrong):
            pass
    assert "secret" not in str(raised.value)
    with pytest.raises(ConfigurationError, match="database is a str"):
        async with local(shop()[0], wrong):
            pass


@pytest.mark.parametrize("wrong", [5, None, b"holdfast", "", "a\0b"])
async def test_a_schema_that_cannot_be_is_refused(wrong: Any) -> None:
    with pytest.raises(HoldfastError, match="schema's name"):
        async with Client("postgresql://127.0.0.1:1/none", schema=wrong):
            pass


def test_what_a_worker_needs_is_of_its_class() -> None:
    for given in ({"app": "shop"}, {"options": 0}, {"options": {"threads": 1}}):
        with pytest.raises(ConfigurationError, match=f"{next(iter(given))} is a"):
            Worker(**{"app": shop()[0], "store": MemoryStore(), **given})  # type: ignore[arg-type]


def test_queues_of_a_worker_may_be_given_once() -> None:
    """An iterator was read by the first look, and the worker served all queues."""
    assert WorkerOptions(queues=(each for each in ["mail"])).queues == ("mail",)  # type: ignore[arg-type]


def test_how_to_connect_is_checked() -> None:
    with pytest.raises(ConfigurationError, match="prepare is True or False, not 'no'"):
        Connecting(prepare="no")  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["paused", "attributes", "headers"])
@pytest.mark.parametrize("wrong", ["", 0, "no", [1]])
def test_options_of_a_schedule_are_checked(option: str, wrong: object) -> None:
    """`paused="no"` was paused, and what counts as false was left out."""
    app, _ = shop()
    given: dict[str, Any] = {option: wrong}
    with pytest.raises(HoldfastError, match=option):
        app.schedule(app.latest("known"), "@daily", **given)


def test_an_entity_has_no_empty_name() -> None:
    """An empty name was that of the class."""

    @dataclass
    class Basket:
        items: int = 0

    with pytest.raises(HoldfastError, match="not a name for a workflow"):
        App("shop").entity(name="")(Basket)
