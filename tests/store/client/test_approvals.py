"""Approvals: listed, checked against their form, decided once."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

import pytest

from holdfast.client import Client
from holdfast.client.approvals import fill_form
from holdfast.errors import (
    ApprovalClosed,
    ApprovalDecided,
    ApprovalNotFound,
    ConfigurationError,
    InvalidInput,
    RunNotFound,
)
from holdfast.types import JSON, Event, FormField

from .workflows import Finisher, tick

FIELDS: list[JSON] = [
    {"name": "amount", "type": "number", "required": True, "label": "How much?"},
    {"name": "note", "type": "text", "required": False},
    {"name": "rush", "type": "boolean", "required": True, "default": False},
    {"name": "via", "type": "choice", "required": False, "choices": ["mail", "van", 1]},
]


async def asked(client: Client, finisher: Finisher, *fields: JSON, title: str = "Refund?") -> UUID:
    """Start a run that asks for an approval with the key `refund`."""
    handle = await client.start(tick)
    [task] = await finisher.claim()
    request: JSON = {
        "title": title,
        "description": "of order 7",
        "fields": list(fields),
        "timeout_at": None,
    }
    await finisher.ask(task, "refund", request)
    return handle.run_id


async def resolution(client: Client, run_id: UUID) -> Event:
    (event,) = [
        e.event for e in await client.runs.log(run_id) if e.event.type == "ApprovalResolved"
    ]
    return event


async def test_open_approvals_are_listed_with_their_form(
    client: Client, finisher: Finisher
) -> None:
    """T4."""
    run_id = await asked(client, finisher, *FIELDS)
    other = await asked(client, finisher, title="Ship?")
    first, second = await client.approvals.list()
    assert (first.run_id, first.key, first.workflow) == (run_id, "refund", "shop/tick")
    assert (first.title, first.description, first.timeout_at) == ("Refund?", "of order 7", None)
    assert [field.name for field in first.fields] == ["amount", "note", "rush", "via"]
    assert (first.fields[0].label, first.fields[3].choices) == ("How much?", ("mail", "van", 1))
    assert second.run_id == other
    assert [each.run_id for each in await client.approvals.list(other)] == [other]
    assert await client.handle(run_id).approvals() == [first]


async def test_a_decision_says_who_why_and_what(client: Client, finisher: Finisher) -> None:
    """T4."""
    run_id = await asked(client, finisher, *FIELDS)
    assert await client.approvals.decide(
        run_id, "refund", True, by="ann", feedback="fine", values={"amount": 7.5, "via": "van"}
    )
    details = json.loads((await resolution(client, run_id)).details or "")
    assert (details["approved"], details["by"], details["feedback"]) == (True, "ann", "fine")
    assert details["values"] == {"amount": 7.5, "rush": False, "via": "van"}
    assert await client.approvals.list() == []


async def test_the_first_decision_wins_and_its_repetition_is_a_no_op(
    client: Client, finisher: Finisher
) -> None:
    """T4. The first decision wins; the same id again is a no-op, another a typed error."""
    run_id = await asked(client, finisher)
    assert await client.approvals.decide(run_id, "refund", False, by="ann", decision_id="d-1")
    assert not await client.approvals.decide(run_id, "refund", False, by="ann", decision_id="d-1")
    with pytest.raises(ApprovalDecided, match="was rejected by ann") as caught:
        await client.approvals.decide(run_id, "refund", True, by="bob")
    assert (caught.value.approved, caught.value.by) == (False, "ann")


async def test_a_repeated_decision_with_values_is_a_no_op(
    client: Client, finisher: Finisher
) -> None:
    """T4."""
    run_id = await asked(client, finisher, *FIELDS)
    for first in (True, False):
        values = {"amount": 1}
        decided = await client.approvals.decide(
            run_id, "refund", True, values=values, decision_id="d"
        )
        assert decided == first


async def test_a_decision_for_a_run_that_was_retried_names_the_retry_that_asks(
    client: Client, finisher: Finisher
) -> None:
    run_id = await asked(client, finisher)
    await client.runs.terminate(run_id)
    retry = await client.runs.retry(run_id)
    with pytest.raises(ApprovalClosed) as caught:
        await client.approvals.decide(run_id, "refund", True)
    assert (caught.value.asked_by, "its retry" in str(caught.value)) == (None, False)
    [task] = await finisher.claim()
    again: JSON = {"title": "Refund?", "description": "", "fields": [], "timeout_at": None}
    await finisher.ask(task, "refund", again)
    with pytest.raises(ApprovalClosed, match=f"its retry waits for it, run {retry.run_id}"):
        await client.approvals.decide(run_id, "refund", True)
    [approval] = await client.approvals.list()
    assert await client.approvals.decide(approval.run_id, approval.key, True)


async def test_a_decision_without_a_waiting_run_says_so(client: Client, finisher: Finisher) -> None:
    """T4."""
    run_id = await asked(client, finisher)
    with pytest.raises(ApprovalNotFound, match="'review'"):
        await client.approvals.decide(run_id, "review", True)
    with pytest.raises(RunNotFound):
        await client.approvals.decide(uuid4(), "refund", True)
    await client.runs.terminate(run_id)
    with pytest.raises(ApprovalClosed):
        await client.approvals.decide(run_id, "refund", True)


async def test_a_decision_is_true_or_false(client: Client, finisher: Finisher) -> None:
    run_id = await asked(client, finisher)
    with pytest.raises(ConfigurationError, match="approved is True or False, not 'yes'"):
        await client.approvals.decide(run_id, "refund", "yes")  # type: ignore[arg-type]
    assert len(await client.approvals.list()) == 1


async def test_values_that_do_not_fit_decide_nothing(client: Client, finisher: Finisher) -> None:
    """T4. Trap 20."""
    run_id = await asked(client, finisher, *FIELDS)
    with pytest.raises(InvalidInput, match="field 'amount' is required"):
        await client.approvals.decide(run_id, "refund", True)
    with pytest.raises(InvalidInput, match="field 'amount' takes a number"):
        await client.approvals.decide(run_id, "refund", True, values={"amount": "7"})
    assert len(await client.approvals.list()) == 1
    assert await client.approvals.decide(run_id, "refund", False)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"amount": True}, "'amount' takes a number, not true"),
        ({"amount": float("nan")}, "'amount' takes a number"),
        ({"amount": None}, "'amount' takes a number, not null"),
        ({"amount": 1, "note": 2}, "'note' takes a text, not 2"),
        ({"amount": 1, "rush": "yes"}, "'rush' takes a boolean, not \"yes\""),
        ({"amount": 1, "via": "ship"}, '\'via\' takes one of "mail", "van", 1, not "ship"'),
        ({"amount": 1, "via": True}, "'via' takes one of"),
        ({"amount": 1, "colour": "red"}, "no field 'colour': there are amount, note, rush, via"),
    ],
)
def test_a_value_that_does_not_fit_its_field_is_named(values: Any, says: str) -> None:
    fields = (
        FormField("amount", "number", required=True),
        FormField("note", "text", required=False),
        FormField("rush", "boolean", required=False, default=False),
        FormField("via", "choice", required=False, choices=("mail", "van", 1)),
    )
    with pytest.raises(InvalidInput) as caught:
        fill_form(fields, values, complete=True)
    assert says in str(caught.value)


def test_a_rejection_needs_no_values() -> None:
    assert fill_form((FormField("amount", "number", required=True),), None, complete=False) is None


def test_an_approval_without_a_form_takes_no_values() -> None:
    with pytest.raises(InvalidInput, match="it takes no values"):
        fill_form((), {"amount": 1}, complete=True)
