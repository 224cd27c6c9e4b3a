"""Two workers that look at one alert in the same moment, and a look that is rolled back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from contract.test_alerts import NOBODY, STUCK, changed
from scene import Scene

from holdfast.types import NewSubscription, QueueSettings, QueueTarget

ACTIVE = changed(NOBODY, lasting_seconds=0)


@pytest.fixture
async def scene(database_url: str) -> AsyncIterator[Scene]:
    async with Scene.on(database_url) as scene:
        await scene.store.create_queue(QueueSettings(name="heard"))
        target = QueueTarget(queue="heard")
        await scene.store.subscribe(NewSubscription(pattern="ops", target=target))
        yield scene


async def events(scene: Scene) -> int:
    return await scene.value("select count(*)::int from holdfast.messages")


async def active(scene: Scene) -> list[bool]:
    return [each.is_active for each in await scene.store.list_alerts()]


async def hold(scene: Scene, function: str, *arguments: object) -> tuple[Any, list[asyncpg.Record]]:
    """Call a function and leave its transaction open; return the transaction, and the answer."""
    session = await scene.session()
    transaction = session.transaction()
    await transaction.start()
    return transaction, await session.call(function, *arguments)


async def test_two_workers_that_look_at_once_publish_one_event(scene: Scene) -> None:
    await scene.store.declare_alerts("shop", [ACTIVE])
    first, changes = await hold(scene, "look_at_alerts")
    assert len(changes) == 1
    assert (await scene.store.look_at_alerts())[0] == []  # it does not wait for the first
    await first.commit()
    assert (await scene.store.look_at_alerts())[0] == []
    assert (await events(scene), await active(scene)) == (1, [True])


async def test_a_look_that_is_lost_has_told_nothing_and_the_next_one_does(scene: Scene) -> None:
    """A worker or the database dies between the change and its commit."""
    await scene.store.declare_alerts("shop", [ACTIVE])
    first, changes = await hold(scene, "look_at_alerts")
    assert len(changes) == 1
    await first.rollback()
    assert (await events(scene), await active(scene)) == (0, [False])
    assert len((await scene.store.look_at_alerts())[0]) == 1
    assert (await events(scene), await active(scene)) == (1, [True])


async def test_an_alert_that_cannot_be_published_does_not_hold_up_the_others(scene: Scene) -> None:
    other = changed(ACTIVE, name="other", topic="other")
    await scene.store.declare_alerts("shop", [ACTIVE, other])
    await scene.store.subscribe(NewSubscription(pattern="other", target=QueueTarget(queue="heard")))
    await scene.value(
        "update holdfast.subscriptions set kind = 'workflow', target = 'other/run', tags = '1'"
        " where pattern = 'other'"
    )
    [refused, told] = sorted(
        (await scene.store.look_at_alerts())[0], key=lambda each: each.is_active
    )
    assert (refused.name, refused.is_active) == ("other", False)
    assert "on a scalar" in (refused.error or "")
    assert (told.name, told.is_active, told.error) == ("nobody", True, None)
    [first, second] = await scene.store.list_alerts()
    assert (first.error, second.error) == (None, refused.error)
    await scene.value("delete from holdfast.subscriptions where pattern = 'other'")
    await scene.value("update holdfast.alerts set look_at = now()")
    assert [each.name for each in (await scene.store.look_at_alerts())[0]] == ["other"]
    assert await active(scene) == [True, True]
    assert [each.error for each in await scene.store.list_alerts()] == [None, None]


async def test_a_worker_that_declares_waits_for_a_look_and_changes_the_rule(scene: Scene) -> None:
    await scene.store.declare_alerts("shop", [ACTIVE])
    first, _ = await hold(scene, "look_at_alerts")
    declaring = scene.store.declare_alerts(
        "shop", [changed(STUCK, name=ACTIVE.name)], starting=True
    )
    assert (await scene.while_blocked(declaring, first.commit)).changed == (ACTIVE.name,)
    assert await active(scene) == [True]  # until it is looked at by the new rule
    assert len((await scene.store.look_at_alerts())[0]) == 1
    assert (await events(scene), await active(scene)) == (2, [False])
