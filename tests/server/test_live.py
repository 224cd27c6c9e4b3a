"""Pages that are open show what is so now."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import cast

from holdfast.server.access import Principal
from holdfast.server.guard import StreamGate
from holdfast.server.pages.live import Streams
from holdfast.server.site import Site

AWAY = "lists: without shard 3, which is away"


class Trusting:
    def still(self, _: Principal) -> bool:
        return True


async def test_a_note_that_is_over_leaves_the_page() -> None:
    told: list[str] = []
    site = SimpleNamespace(
        streams=StreamGate(), access=Trusting(), closing=asyncio.Event(), stream_seconds=10.0
    )

    async def look() -> Mapping[str, str]:
        is_told = any(AWAY in each for each in told)
        return {"all": "runs"} if is_told else {"all": "runs", "reads": AWAY}

    streams = Streams(cast("Site", site))
    async for each in streams.follow("/", Principal("ann", "read"), look, 0.001):
        told.append(each)
        if len([each for each in told if "#reads" in each]) == 2:
            break
    assert [AWAY in each for each in told if "#reads" in each] == [True, False]
