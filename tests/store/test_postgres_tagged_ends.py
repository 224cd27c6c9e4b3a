"""Runs that end while another transaction sets their tags."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from contract.actors import ManualWorker, get, start
from scene import Scene


@pytest.fixture
async def scene(any_database_url: str) -> AsyncIterator[Scene]:
    async with Scene.on(any_database_url) as scene:
        yield scene


@pytest.mark.parametrize("runs", [1, 3])
async def test_a_run_that_is_ended_while_it_is_tagged_has_ended(
    scene: Scene, ann: ManualWorker, runs: int
) -> None:
    """Fault: its row stayed as it was, without an end, although its log has one."""
    run_ids = [await start(scene.store) for _ in range(runs)]
    session = await scene.session()
    transaction = session.transaction()
    await transaction.start()
    await session.call("set_tags", run_ids[0], '["late"]')
    ends = scene.store.terminate_runs(run_ids)
    await scene.while_blocked(ends, transaction.commit)
    for run_id in run_ids:
        assert (await get(scene.store, run_id)).status == "terminated"
    assert (await get(scene.store, run_ids[0])).tags == ("late",)
