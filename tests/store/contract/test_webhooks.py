"""Webhooks: opened by a run, used once."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import Any
from uuid import UUID, uuid4

import pytest
from clocks import Clock

from holdfast.errors import PayloadError
from holdfast.store.port import Store
from holdfast.types import ANY_END, Event, Finish, Fork, FoundWebhook, Notice, Suspend, WebhookPost

from .actors import ManualWorker, details, log, log_types, start, step
from .commands import FAILURE, command, failed, ordered


def digest(token: str) -> str:
    """Return what is stored of a token."""
    return sha256(token.encode()).hexdigest()


def webhook(key: str = "paid", token: str = "t", **fields: Any) -> Event:
    """Return a WebhookOpened."""
    said = {"webhook_name": key, "body": "json", "secret": None, "scheme": "standard"}
    said |= {"digest": digest(token), "url": f"https://here/{token}"}
    return command("WebhookOpened", key, **{**said, **fields})


def post(run_id: UUID, token: str = "t", body: str = '{"b":1e300,"a":2}') -> WebhookPost:
    """Return a POST."""
    return WebhookPost(run_id=run_id, key="paid", digest=digest(token), body=body)


async def outcome(store: Store, run_id: UUID, token: str = "t") -> str:
    """Post, and return what became of it."""
    return (await store.receive_webhook(post(run_id, token)))[0]


async def state(store: Store, token: str = "t") -> str:
    """Return the state of a webhook."""
    found = await store.find_webhook(digest(token))
    return "missing" if found is None else found.state


async def failing(store: Store, worker: ManualWorker, *events: Event) -> UUID:
    """Start a run that gives commands and fails."""
    run_id = await start(store)
    task = await worker.take()
    answer = await worker.commit(
        task, *events, failed(), then=Finish("failed", error=FAILURE), has_children=True
    )
    assert not answer.refused, answer.refused
    return run_id


async def fork(store: Store, run_id: UUID, **fields: Any) -> UUID:
    """Fork a run; return the new one's id."""
    made = Fork(run_id=run_id, new_run_id=uuid4(), **fields)
    assert (await store.fork_run(made))[0] == "forked"
    return made.new_run_id


async def test_a_webhook_is_found_by_its_digest(store: Store, ann: ManualWorker) -> None:
    run_id = await ordered(store, ann, webhook(body="bytes", secret="KEY", scheme="stripe"))
    assert await store.find_webhook(digest("t")) == FoundWebhook(
        run_id=run_id, key="paid", body="bytes", secret="KEY", scheme="stripe", state="open"
    )
    assert await store.find_webhook(digest("other")) is None
    assert await outcome(store, run_id, "other") == "missing"


async def test_a_post_is_recorded_and_wakes_the_run(
    store: Store, clock: Clock, ann: ManualWorker
) -> None:
    run_id = await ordered(store, ann, webhook())
    await clock.advance(5)
    assert await store.receive_webhook(post(run_id)) == ("received", [Notice("work", "default")])
    event = (await log(store, run_id))[-1]
    assert (event.type, event.key, event.at) == ("WebhookReceived", "paid", await store.now())
    assert event.details == '{"body":{"b":1e300,"a":2}}'
    assert await state(store) == "received"
    assert await ann.claims() == [run_id]


async def test_the_first_post_counts(store: Store, ann: ManualWorker) -> None:
    """Ten at once, and one later: one entry in the log."""
    run_id = await ordered(store, ann, webhook())
    answers = await asyncio.gather(*(outcome(store, run_id) for _ in range(10)))
    assert sorted(answers) == ["duplicate"] * 9 + ["received"]
    assert await outcome(store, run_id) == "duplicate"
    assert await log_types(store, run_id) == ["WorkflowStarted", "WebhookOpened", "WebhookReceived"]


async def test_a_post_while_a_worker_has_the_run_is_told_to_the_worker(
    store: Store, ann: ManualWorker
) -> None:
    run_id = await start(store)
    turn = await ann.take()
    await ann.command(turn, webhook())
    assert (await store.receive_webhook(post(run_id)))[1] == [Notice("worker/ann", str(run_id))]
    refusal = await ann.refusal(turn, step(), then=Suspend(awaiting=(ANY_END,)), expected=2)
    assert [event.type for event in refusal.tail] == ["WebhookReceived"]


async def test_a_webhook_that_is_closed_takes_nothing(store: Store, ann: ManualWorker) -> None:
    run_id = await start(store)
    turn = await ann.take()
    await ann.command(turn, webhook(), webhook("other", "o"))
    await ann.command(turn, command("WebhookClosed", "paid"), expected=3)
    assert (await state(store), await state(store, "o")) == ("closed", "open")
    assert await store.receive_webhook(post(run_id)) == ("closed", [])
    assert (await log_types(store, run_id))[-1] == "WebhookClosed"


async def test_after_the_end_of_the_run_posts_are_refused_and_repetitions_known(
    store: Store, ann: ManualWorker
) -> None:
    run_id = await ordered(store, ann, webhook(), webhook("other", "o"))
    await outcome(store, run_id)
    await ann.finish(await ann.take())
    assert (await state(store), await state(store, "o")) == ("received", "closed")
    assert await outcome(store, run_id) == "duplicate"
    assert await outcome(store, run_id, "o") == "closed"


async def test_a_webhook_of_the_commit_that_ends_its_run_is_closed(
    store: Store, ann: ManualWorker
) -> None:
    await start(store)
    await ann.finish_with(await ann.take(), webhook())
    assert await state(store) == "closed"


async def test_a_webhook_goes_with_its_run(store: Store, clock: Clock, ann: ManualWorker) -> None:
    await start(store, retention_seconds=1.0)
    await ann.finish_with(await ann.take(), webhook())
    await clock.advance(2)
    assert (await store.sweep_runs()).deleted == 1
    assert await state(store) == "missing"


async def test_a_retry_takes_over_what_was_not_used(store: Store, ann: ManualWorker) -> None:
    """Others have the URL: what they post reaches the run that continues."""
    first = await failing(store, ann, webhook(), step("a"))
    assert await outcome(store, first) == "closed"
    second = await fork(store, first, retry=True)
    assert [(e.type, e.key) for e in (await log(store, second))[1:-1]] == [
        ("WebhookOpened", "paid"),
        ("StepCompleted", "a"),
    ]
    assert await outcome(store, first) == "moved"
    assert await outcome(store, second) == "received"
    assert (await log(store, second))[-1].type == "WebhookReceived"


async def test_a_retry_has_what_was_used_in_its_log(store: Store, ann: ManualWorker) -> None:
    run_id = await start(store)
    turn = await ann.take()
    await ann.command(turn, webhook())
    await outcome(store, run_id)
    await ann.commit(turn, failed(), then=Finish("failed", error=FAILURE), expected=3)
    again = await fork(store, run_id, retry=True)
    assert (await log_types(store, again))[1:-1] == ["WebhookOpened", "WebhookReceived"]
    assert await outcome(store, run_id) == "duplicate"


async def test_a_fork_from_before_the_post_waits_for_another(
    store: Store, ann: ManualWorker
) -> None:
    first = await ordered(store, ann, webhook())
    await outcome(store, first)
    await ann.finish(await ann.take())
    second = await fork(store, first, until=2)
    assert (await log_types(store, second))[1:-1] == ["WebhookOpened"]
    assert await outcome(store, second) == "received"


async def test_a_fork_of_an_open_run_leaves_it_its_urls(store: Store, ann: ManualWorker) -> None:
    first = await ordered(store, ann, webhook())
    second = await fork(store, first)
    assert await outcome(store, second) == "moved"
    assert await outcome(store, first) == "received"


@pytest.mark.parametrize("retry", [False, True])
async def test_a_fork_takes_over_what_an_earlier_one_has_left(
    store: Store, ann: ManualWorker, retry: bool
) -> None:
    """Fault: the first fork kept the URL for good, and what others posted to it was lost."""
    first = await failing(store, ann, webhook())
    wrong = await fork(store, first)
    beside = await fork(store, first, until=2)
    assert await outcome(store, beside) == "moved", "the first fork is open, and has its URL"
    await store.terminate_runs([wrong])
    right = await fork(store, first, retry=retry)
    assert await outcome(store, right) == "received"
    assert (await log(store, right))[-1].type == "WebhookReceived"


async def test_a_fork_from_before_the_opening_has_no_url(store: Store, ann: ManualWorker) -> None:
    first = await failing(store, ann, step("a"), webhook())
    second = await fork(store, first, until=2)
    assert await outcome(store, second) == "moved"
    assert await state(store) == "closed"


async def test_a_fork_copies_a_close_only_with_its_post(store: Store, ann: ManualWorker) -> None:
    """Without one, the code closes it again."""
    first = await failing(store, ann, webhook(), command("WebhookClosed", "paid"))
    second = await fork(store, first, retry=True)
    assert (await log_types(store, second))[1:-1] == ["WebhookOpened"]
    assert await state(store) == "open"


@pytest.mark.parametrize("body", ["", "{", "[" * 300 + "]" * 300, '"\\u0000"'])
async def test_a_body_that_cannot_be_stored_is_refused(
    store: Store, ann: ManualWorker, body: str
) -> None:
    run_id = await ordered(store, ann, webhook())
    with pytest.raises(PayloadError):
        await store.receive_webhook(post(run_id, body=body))
    assert await state(store) == "open"
    assert details((await log(store, run_id))[1])["digest"] == digest("t")
