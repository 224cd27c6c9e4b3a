"""What was set by hand in the shards before a new one came: it gets it before it is used."""

from __future__ import annotations

from itertools import groupby

from holdfast.store.port import Store
from holdfast.types import BuildInfo


async def copy_settings(source: Store, target: Store) -> None:
    """Copy pauses, limits, and which builds are in use. Idempotent.

    What the code of apps declares is not copied: the workers of the new shard declare it.
    """
    for each in await source.list_pauses():
        await target.set_pause(each.scope, each.name, paused=True, reason=each.reason)
    for limit in await source.list_limits():
        if not limit.is_declared:
            await target.set_limit(limit.rule)
    for _, builds in groupby(await source.list_builds(), key=lambda each: each.app):
        await _copy_builds([*builds], target)


async def _copy_builds(newest_first: list[BuildInfo], target: Store) -> None:
    for each in reversed(newest_first):
        await target.declare_build(each.app, each.build, each.pinned)
    for each in newest_first:
        if each.is_current:
            await target.promote_build(each.app, each.build)
    for each in newest_first:
        if each.ramp_percent is not None:
            await target.ramp_build(each.app, each.build, each.ramp_percent)
