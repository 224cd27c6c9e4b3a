"""A name that an object does not have: the error says which one may be meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast
from uuid import uuid4

import pytest

from holdfast import App, Client, Context, SyncClient

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
            lambda app, given: app.workflow(**given)(_run),
            "workflow _run: unexpected option task_queue: did you mean queue?",
        ),
        (
            lambda app, given: app.job(**given)(_job),
            "workflow _job: unexpected option task_queue: did you mean queue?",
        ),
        (
            lambda app, given: app.subscribe("a.b", app.workflow(_run), **given),
            "unexpected option for subscribe: task_queue",
        ),
    ],
)
def test_an_option_that_does_not_exist_is_not_ignored(
    define: Callable[[App, dict[str, str]], object], said: str
) -> None:
    with pytest.raises(TypeError) as caught:
        define(App("shop"), {"task_queue": "x"})
    assert str(caught.value) == said
