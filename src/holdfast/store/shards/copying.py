"""What was set by hand in the shards before a new one came: it gets it before it is used."""

from __future__ import annotations

from itertools import groupby

from holdfast.store.port import Store
from holdfast.types import BuildInfo


async def copy_settings(source: Store, target: Store) -> None:
    """Copy pauses, limits, which builds are in use, and rules for starts. Idempotent.

    What the target has beside them, from a copy before, is removed. What else the code of apps
    declares is not copied: the workers of the new shard declare it. Rules are in force where all
    shards have them.
    """
    await target.declare_start_rules(await source.list_start_rules())
    pauses = await source.list_pauses()
    limits = [each.rule for each in await source.list_limits() if not each.is_declared]
    kept = {(each.scope, each.name) for each in pauses}
    for each in await target.list_pauses():
        if (each.scope, each.name) not in kept:
            await target.set_pause(each.scope, each.name, paused=False)
    for each in pauses:
        await target.set_pause(each.scope, each.name, paused=True, reason=each.reason)
    names = {(each.scope, each.name, each.kind, each.key) for each in limits}
    for found in await target.list_limits():
        place = (found.rule.scope, found.rule.name, found.rule.kind, found.rule.key)
        if not found.is_declared and place not in names:
            await target.remove_limit(*place)
    for rule in limits:
        await target.set_limit(rule)
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
