"""The people around the runs of the crash suite: who decides and who asks for updates."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from holdfast.client import Client
from holdfast.client.handle import RunHandle
from holdfast.errors import ApprovalClosed, ApprovalDecided, ApprovalNotFound, ResultTimeout
from tests.crash.across import UPDATES
from tests.crash.fleet import patiently


async def decide_all(client: Client) -> None:
    """Approve whatever is asked, each decision repeated; another one comes too late."""
    while True:
        for approval in await patiently(client.approvals.list):
            decide = partial(client.approvals.decide, approval.run_id, approval.key, True, by="ann")
            with suppress(ApprovalNotFound, ApprovalClosed):  # listed as open a moment ago
                await patiently(partial(decide, decision_id="yes"))
                assert not await patiently(partial(decide, decision_id="yes"))
                with suppress(ApprovalDecided):
                    await patiently(partial(decide, decision_id="no"))
                    raise AssertionError("a second decision was taken")
        await asyncio.sleep(0.02)


async def update_all(handles: Iterable[RunHandle[object]]) -> None:
    """Update every run as often as it waits for; both of two askers get the same answer."""
    async with asyncio.TaskGroup() as group:
        for handle in handles:
            for item in range(UPDATES):
                group.create_task(_update(handle, item))


async def _update(handle: RunHandle[object], item: int) -> None:
    ask = partial(handle.update, "add", item, update_id=f"add-{item}", timeout="5s")

    async def insist() -> object:
        while True:
            with suppress(ResultTimeout):
                return await patiently(ask)

    first, second = await asyncio.gather(insist(), insist())
    assert first == second, "an update was carried out twice"
