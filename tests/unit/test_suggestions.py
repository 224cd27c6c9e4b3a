"""A name that an object does not have: the error says which one may be meant."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import IntEnum
from typing import Any, cast
from uuid import uuid4

import pytest

from holdfast import App, Client, Context, SyncClient
from holdfast.errors import ConfigurationError

RUN = str(uuid4())


def error_of(owner: object, name: str) -> str:
    with pytest.raises(AttributeError) as caught:
        getattr(owner, name)
    return str(caught.value)


@pytest.mark.parametrize("client", [Client(), SyncClient()])
@pytest.mark.parametrize(
    ("name", "meant"),
    [
        (
            "list",
            "approvals.list or alerts.list or archive.list or builds.list or flows.list or "
            "limits.list or queues.list or "
            "runs.list or schedules.list or topics.list or webhooks.list or workers.list",
        ),
        ("cancel_all", "runs.cancel_all"),
        ("decide", "approvals.decide"),
        ("pause_queue", "queues.pause"),
        ("complete_activity", "activities.complete"),
        ("list_runs", "runs.list"),
    ],
)
def test_a_method_of_a_group_is_named_with_its_group(client: object, name: str, meant: str) -> None:
    kind = type(client).__name__
    message = f"'{kind}' object has no attribute '{name}': did you mean {meant}?"
    assert error_of(client, name) == message


@pytest.mark.parametrize("client", [Client(), SyncClient()])
def test_the_longer_name_of_a_handles_method_is_named(client: Client | SyncClient) -> None:
    handle = client.handle(RUN)
    assert error_of(handle, "follow").endswith("did you mean follow_log?")
    assert error_of(handle, "watch").endswith("did you mean watch_steps or watch_value?")


def test_the_longer_name_of_a_contexts_method_is_named() -> None:
    context = Context.__new__(Context, cast("Any", None))
    assert error_of(context, "set").endswith("did you mean set_attributes or set_value?")


def test_nothing_is_suggested_for_a_name_that_is_like_none() -> None:
    assert error_of(Client(), "frobnicate") == "'Client' object has no attribute 'frobnicate'"
    assert not hasattr(Client.__new__(Client), "_session")


@pytest.mark.parametrize(
    ("owner", "name", "meant"),
    [
        (Client(), "start_workflow", "start"),
        (Client(), "list_workflows", "runs.list"),
        (Client().handle(RUN), "query", "values"),
        (Context.__new__(Context, cast("Any", None)), "wait_condition", "wait_for_signal"),
    ],
)
def test_a_name_of_another_project_leads_to_ours(owner: object, name: str, meant: str) -> None:
    assert error_of(owner, name).endswith(f"{name!r}: did you mean {meant}?")
    assert hasattr(owner, meant.partition(".")[0])


async def _run(ctx: Context, text: str) -> None: ...


async def _job(text: str) -> None: ...


@pytest.mark.parametrize(
    ("define", "said"),
    [
        (
            lambda app: app.step(rate=1)(_job),
            "rate: it is for app.activity, app.job, app.queue, app.workflow. There are al",
        ),
        (
            lambda app: app.step(_job, retries=1),
            "app.step: unexpected option retries: did you mean",
        ),
        (lambda app: app.workflow(task_queue="x"), "task_queue: did you mean queue? There are co"),
        (
            lambda app: app.job(task_queue="x"),
            "app.job: unexpected option task_queue: did you mean",
        ),
        (lambda app: app.activity(timeout=1), "option timeout: did you mean start_to_close? There"),
        (
            lambda app: app.transaction(isolated=1),
            "app.transaction: unexpected option isolated: did",
        ),
        (
            lambda app: app.entity(rate=1),
            "app.entity: unexpected option rate: it is for app.activity, app.jo",
        ),
        (lambda app: app.flow("f", retry=1), "option retry: did you mean attempts and base_delay?"),
        (lambda app: app.flow("f").step(x=1), "flow f: a step: unexpected option x. There are att"),
        (lambda app: app.queue("q", limit=1), "app.queue: unexpected option limit. There are age"),
        (lambda app: app.message_queue("q", max_receive=1), "did you mean max_receives? There are"),
        (
            lambda app: app.consumer("q", retries=1),
            "app.consumer: unexpected option retries: did you",
        ),
        (
            lambda app: app.alert("a", whenn=1),
            "app.alert: unexpected option whenn: did you mean when",
        ),
        (lambda app: app.schedule("* * * * *", zone="x")(app.workflow(_run)), "option zone"),
        (
            lambda app: app.subscribe("a.b", app.workflow(_run), task_queue="x"),
            "app.subscribe: unexpected option task_queue: did you mean queue? There are attributes",
        ),
        (lambda app: App("shop", buld="x"), "App: unexpected option buld: did you mean build?"),
    ],
)
def test_an_option_that_does_not_exist_is_answered_with_what_was_meant(
    define: Callable[[Any], object], said: str
) -> None:
    with pytest.raises(TypeError) as caught:
        define(App("shop"))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"max_receives": "3"}, "max_receives: a whole number from 1 to 2,147,483,647 is needed"),
        ({"max_receives": 0}, "max_receives: a whole number from 1 to 2,147,483,647 is needed"),
        ({"visibility": "soon"}, "visibility: not a duration: 'soon'"),
        ({"visibility": None}, "visibility: not a duration: None"),
        ({"deduplication": -1}, "deduplication: not a duration: -1"),
        ({"keep": "soon"}, "keep: not a duration: 'soon'"),
        ({"dead_letters": "no name"}, "dead_letters: 'no name' is not a name for a queue"),
        ({"fifo": "yes"}, "fifo is True or False, not 'yes'"),
    ],
)
async def test_the_error_of_a_wrong_option_of_a_message_queue_names_the_queue(
    option: dict[str, Any], said: str
) -> None:
    """At its declaration, and before a client asks the database."""
    message = f"message queue parcels: {re.escape(said)}"
    with pytest.raises(ConfigurationError, match=message):
        App("shop").message_queue("parcels", **option)
    with pytest.raises(ConfigurationError, match=message):
        await Client().queues.create("parcels", **option)


def test_a_whole_number_may_be_that_of_an_enumeration() -> None:
    tries = IntEnum("Tries", {"FEW": 3})
    app = App("shop")
    app.message_queue("parcels", max_receives=tries(3))
    assert app.flow("f", attempts=tries(3)).shape.max_attempts == 3


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"retry": 3}, "app shop: retry must be a Retry"),
        ({"blocking_limit": "soon"}, "app shop: blocking_limit: not a duration"),
        ({"blocking_limit": 0}, "app shop: blocking_limit: it must be more than 0"),
    ],
)
def test_the_error_of_a_wrong_option_of_an_app_names_the_app(
    option: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        App("shop", **option)


def test_the_error_of_aliases_that_are_not_names_names_the_step() -> None:
    for aliases in (3, "old"):
        with pytest.raises(ConfigurationError, match="step _job: aliases: a list of names is need"):
            App("shop").step(aliases=aliases)(_job)  # type: ignore[arg-type]
