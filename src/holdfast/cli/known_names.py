"""Which names of queues and workflows somebody knows: a mistyped one is nobody's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from holdfast.cli.served import find_served
from holdfast.client.bulk import LIVE
from holdfast.types import RunFilter, Scope

if TYPE_CHECKING:
    from holdfast.cli.connecting import Link

_NEWEST = 200  # runs whose names may be meant


async def find_unknown(
    link: Link, scope: Scope, names: Sequence[str]
) -> Mapping[str, Sequence[str]]:
    """Return those of the names that no live worker and no run knows, each with similar ones.

    A queue whose runs have all ended may be unknown, too: nothing tells it from a mistyped one.
    """
    served = await find_served(link, scope)
    newest = (await link.store.list_runs(RunFilter(limit=_NEWEST))).runs
    known = {each.name for each in served if each.workers or each.unserved}
    known |= {run.queue if scope == "queue" else run.full_name for run in newest}
    return {
        name: get_close_matches(name, sorted(known))
        for name in names
        if name not in known and not await _has_run(link, scope, name)
    }


async def _has_run(link: Link, scope: Scope, name: str) -> bool:
    if scope == "queue":
        where = RunFilter(queues=(name,), states=LIVE, limit=1)
    else:
        where = RunFilter(names=(name,), limit=1)
    return bool((await link.store.list_runs(where)).runs)
