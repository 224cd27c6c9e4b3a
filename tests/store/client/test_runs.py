"""Runs as callers see them: values of the declared types, moments with a time zone."""

from __future__ import annotations

from datetime import UTC, timedelta
from uuid import uuid4

import pytest

from holdfast.client import Client, Run
from holdfast.errors import ConfigurationError, InvalidInput, InvalidName, UnknownWorkflow
from holdfast.store.port import Store
from holdfast.types import AppInfo, NewRun

from .workflows import Finisher, Order, Receipt, app, order, tick, tick_2


async def test_values_are_of_the_types_that_the_workflow_declares(
    client: Client, store: Store, finisher: Finisher
) -> None:
    handle = await client.start(order, Order(7), key="order-7")
    await finisher.complete(Receipt(7, paid=True))
    async with Client(store=store, app=app) as knowing:
        seen: list[Run] = [
            await handle.get(),
            await client.runs.get((order, "order-7")),
            await client.runs.get(handle.run_id, order),
            await client.runs.wait((order, "order-7")),
            await knowing.runs.get(handle.run_id),
            (await knowing.runs.list(payloads=True)).runs[0],
        ]
    assert [run.input for run in seen] == [Order(7)] * 6
    assert [run.output for run in seen] == [Receipt(7, paid=True)] * 6


async def test_without_the_workflow_values_are_plain_json(
    client: Client, finisher: Finisher
) -> None:
    run_id = (await client.start(order, Order(7))).run_id
    assert (await client.runs.get(run_id)).output is None
    await finisher.complete(Receipt(7, paid=True))
    for run in (await client.runs.get(run_id), await client.runs.get(run_id, tick)):
        assert run.input == {"number": 7, "notes": []}
        assert run.output == {"number": 7, "paid": True}
        assert run.record.output == '{"number":7,"paid":true}'


async def test_a_run_keeps_the_types_of_its_own_version(client: Client, finisher: Finisher) -> None:
    handle = await client.start(tick)
    await finisher.complete("not a number")
    with pytest.raises(InvalidInput, match="int"):
        _ = (await client.runs.get(handle.run_id, tick_2)).output


async def test_a_handle_in_place_of_an_id_is_refused_with_the_way_out(client: Client) -> None:
    handle = await client.start(tick)
    for calls in (client.runs.get, client.approvals.list):
        with pytest.raises(InvalidInput, match=r"is not a run's id.*pass its run_id"):
            await calls(handle)  # type: ignore[arg-type]  # pyright: ignore


async def test_an_error_is_what_was_recorded(client: Client, finisher: Finisher) -> None:
    handle = await client.start(tick)
    assert (await handle.get()).error is None
    await finisher.fail(KeyError("x"))
    error = (await handle.get()).error
    assert error is not None
    assert error.matches(LookupError)
    assert str(error) == "KeyError: 'x'"


async def test_moments_are_in_utc(client: Client, finisher: Finisher) -> None:
    run = await (await client.start(tick, delay="1h")).get()
    assert run.created_at.tzinfo is UTC
    assert run.wait is not None
    assert run.wait.until == run.created_at + timedelta(hours=1)
    assert (run.started_at, run.completed_at, run.deadline_at) == (None, None, None)
    assert [each.run_id for each in (await client.runs.list(since=run.created_at)).runs] == [
        run.run_id
    ]
    assert (await client.runs.list(until=run.created_at)).runs == []


async def test_runs_are_counted_by_workflow(client: Client) -> None:
    for _ in range(2):
        await client.start(tick, tags=["vip"])
    await client.start(order, Order(7))
    counted = await client.runs.count(by="workflow")
    assert counted.counts == {tick.full_name: 2, order.full_name: 1}
    assert counted.searched_until is None
    assert (await client.runs.count("tag", names=tick.full_name)).counts == {"vip": 2}


async def test_a_count_that_cannot_be_is_refused_with_what_there_is(client: Client) -> None:
    with pytest.raises(InvalidName, match="'two words' is not a name for an attribute"):
        await client.runs.count(by="two words")
    with pytest.raises(ConfigurationError, match="a count has no pages: leave out cursor, limit"):
        await client.runs.count(by="tag", limit=5, cursor="x")
    with pytest.raises(ConfigurationError, match="unknown state 'blue'"):
        await client.runs.count(by="tag", states="blue")


async def test_a_list_without_payloads_says_that_it_has_none(client: Client) -> None:
    await client.start(order, Order(7))
    [run] = (await client.runs.list()).runs
    for read in ("input", "output", "continued_as"):
        with pytest.raises(ConfigurationError, match="payloads=True"):
            getattr(run, read)
    assert run.error is None


async def test_a_filter_by_a_name_that_nobody_has_had_is_refused(
    client: Client, store: Store
) -> None:
    """It is misspelled; a change of many runs would change none, without a word."""
    await client.start(order, Order(7))
    await store.sign_on_app(AppInfo(app=app.name, workflows=("order",)))
    for call in (
        client.runs.list(names="oder"),
        client.runs.list(names=["order", "oder"]),
        client.runs.count(by="state", names="oder"),
        client.runs.cancel_all({"names": "oder"}),
        anext(client.runs.iterate(names="oder")),
    ):
        with pytest.raises(UnknownWorkflow, match=r"'oder'.*did you mean \w+/order"):
            await call
    assert len((await client.runs.list(names="order")).runs) == 1
    assert (await client.runs.list(names="elsewhere/oder")).runs == []  # its app may come yet


async def test_a_filter_finds_runs_whose_name_has_no_app(client: Client, store: Store) -> None:
    """Runs of a release without apps have no app to which a worker could have signed on."""
    old = NewRun(run_id=uuid4(), name="oder")
    await store.start_runs([old])
    assert [run.run_id for run in (await client.runs.list(names="oder")).runs] == [old.run_id]


async def test_a_filter_of_a_client_with_an_app_means_what_its_code_or_its_workers_have(
    store: Store,
) -> None:
    old = NewRun(run_id=uuid4(), name="shop/removed")
    await store.start_runs([old])
    await store.sign_on_app(AppInfo(app="shop", workflows=("of_another_program",)))
    async with Client(store=store, app=app) as client:
        for known in ("order", "of_another_program"):
            assert (await client.runs.list(names=known)).runs == []
        [found] = (await client.runs.list(names="removed")).runs
        assert found.run_id == old.run_id
        with pytest.raises(UnknownWorkflow, match="no workflow oder; it has order@1"):
            await client.runs.list(names="oder")
