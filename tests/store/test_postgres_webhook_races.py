"""POSTs to a webhook that meet others, its close, or the end of its run: each held open in turn."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from contract.actors import ManualWorker, get, log_types, start
from contract.commands import command, ordered
from contract.test_webhooks import digest, fork, post, state, webhook
from scene import Scene
from test_postgres_approval_races import hold

from holdfast.types import ANY_END, Suspend


@pytest.fixture
async def scene(database_url: str) -> AsyncIterator[Scene]:
    async with Scene.on(database_url) as scene:
        yield scene


async def test_a_post_behind_another_that_is_not_committed_is_a_duplicate(
    scene: Scene, ann: ManualWorker
) -> None:
    run_id = await ordered(scene.store, ann, webhook())
    first = await hold(scene, "receive_webhook", digest("t"), run_id, "1")
    second = await scene.while_blocked(scene.store.receive_webhook(post(run_id)), first.commit)
    assert second == ("duplicate", [])
    assert (await log_types(scene.store, run_id)).count("WebhookReceived") == 1


async def test_a_post_behind_another_that_is_rolled_back_is_taken(
    scene: Scene, ann: ManualWorker
) -> None:
    run_id = await ordered(scene.store, ann, webhook())
    first = await hold(scene, "receive_webhook", digest("t"), run_id, "1")
    second = await scene.while_blocked(scene.store.receive_webhook(post(run_id)), first.rollback)
    assert second[0] == "received"


async def test_a_post_behind_the_end_of_its_run_finds_it_closed(
    scene: Scene, ann: ManualWorker
) -> None:
    run_id = await ordered(scene.store, ann, webhook())
    ending = await hold(scene, "terminate_runs", [run_id])
    late = await scene.while_blocked(scene.store.receive_webhook(post(run_id)), ending.commit)
    assert late == ("closed", [])
    assert "WebhookReceived" not in await log_types(scene.store, run_id)


async def test_an_end_behind_a_post_comes_after_it_in_the_log(
    scene: Scene, ann: ManualWorker
) -> None:
    run_id = await ordered(scene.store, ann, webhook())
    posting = await hold(scene, "receive_webhook", digest("t"), run_id, "1")
    await scene.while_blocked(scene.store.terminate_runs([run_id]), posting.commit)
    assert (await log_types(scene.store, run_id))[2:] == ["WebhookReceived", "WorkflowTerminated"]
    assert (await get(scene.store, run_id)).status == "terminated"
    assert await state(scene.store) == "received"


async def test_a_close_behind_a_post_that_is_not_committed_is_refused_with_it(
    scene: Scene, ann: ManualWorker
) -> None:
    """The code did not see the POST, whose sender is told that it is in the log."""
    run_id = await start(scene.store)
    task = await ann.take()
    await ann.command(task, webhook())
    posting = await hold(scene, "receive_webhook", digest("t"), run_id, "1")
    closed, yielding = command("WebhookClosed", "paid"), Suspend(awaiting=(ANY_END,))
    assert (await ann.refusal(task, closed, then=yielding, expected=2)).reason == "busy"
    await posting.commit()
    refusal = await ann.refusal(task, closed, then=yielding, expected=2)
    assert (refusal.reason, [each.type for each in refusal.tail]) == (
        "conflict",
        ["WebhookReceived"],
    )


async def test_a_post_behind_a_fork_that_takes_the_url_over_is_sent_to_the_fork(
    scene: Scene, ann: ManualWorker
) -> None:
    run_id = await ordered(scene.store, ann, webhook())
    await scene.store.terminate_runs([run_id])
    new_id = await fork(scene.store, run_id, retry=True)
    assert (await scene.store.receive_webhook(post(run_id)))[0] == "moved"
    assert (await scene.store.receive_webhook(post(new_id)))[0] == "received"


async def test_a_fork_behind_another_leaves_it_the_url(scene: Scene, ann: ManualWorker) -> None:
    """The first one is not committed when the second looks whose the URL is."""
    run_id = await ordered(scene.store, ann, webhook())
    await scene.store.terminate_runs([run_id])
    first = uuid4()
    forking = await hold(scene, "fork_run", run_id, first)
    second = await scene.while_blocked(fork(scene.store, run_id), forking.commit)
    assert (await scene.store.receive_webhook(post(second)))[0] == "moved"
    assert (await scene.store.receive_webhook(post(first)))[0] == "received"
