"""Find the run that an argument names: an id, a part of one, workflow/key, or app/workflow/key."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from itertools import islice
from typing import TYPE_CHECKING
from uuid import UUID

from holdfast.cli.exits import NOT_FOUND, USAGE, Refusal
from holdfast.errors import RunNotFound, UnknownQueue, UnknownWorkflow
from holdfast.values.names import check_reference, full_name, split_name
from holdfast.values.suggestions import nearest, similar_name

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.client.filters import RunFilters
    from holdfast.store.port import Store
    from holdfast.types import RunRecord

_NEWEST = 2_000  # runs that are searched for a part of an id
_SHORTEST = 4
_SHOWN = 5


async def find_run(client: Client, reference: str) -> RunRecord:
    """Return the run that an argument names.

    Raises:
        RunNotFound: no run has this id, or this workflow and key.
        Refusal: no run, or more than one, has an id with this part.
    """
    if "/" in reference:
        return await _find_by_key(client, reference)
    try:
        return (await client.runs.get(UUID(reference))).record
    except ValueError:
        return await _find_by_part(client, reference)


async def find_parent(client: Client, filters: RunFilters) -> RunFilters:
    """Return filters in which `parent` is a run's id, instead of an argument that names the run.

    A whole id is not looked up: the children of a deleted run may still exist.
    """
    parent = filters.get("parent")
    if not isinstance(parent, str):
        return filters
    try:
        return {**filters, "parent": UUID(parent)}
    except ValueError:
        return {**filters, "parent": (await find_run(client, parent)).run_id}


async def _find_by_key(client: Client, reference: str) -> RunRecord:
    """Return the run of workflow/key or app/workflow/key; a key may have a slash as well."""
    parts = reference.split("/", 2)
    meant = [(parts[0], "/".join(parts[1:]))]
    if len(parts) == 3:
        meant.insert(0, (f"{parts[0]}/{parts[1]}", parts[2]))
    missing: list[tuple[str, str]] = []
    unknown: list[UnknownWorkflow] = []
    for workflow, key in meant:
        try:
            return (await client.runs.get((workflow, key))).record
        except RunNotFound:
            missing.append((workflow, key))
        except UnknownWorkflow as error:
            unknown.append(error)
    if not missing:
        raise unknown[0]
    workflow, key = missing[0]
    raise Refusal(f"no run of {workflow} was started with the key {key!r}", NOT_FOUND)


async def _find_by_part(client: Client, reference: str) -> RunRecord:
    part = reference.lower()
    if len(part) < _SHORTEST or not all(each in "0123456789abcdef-" for each in part):
        raise Refusal(
            f"{reference!r} is not a run: give an id, at least {_SHORTEST} digits of its beginning "
            f"or end, or workflow/key{await _meant(client, reference)}",
            USAGE,
        )
    matches = dict.fromkeys(await client.runs.find_ids(part, _SHOWN + 1))
    looked_at = 0
    async with aclosing(client.runs.iterate(limit=1000)) as newest:
        async for run in newest:
            looked_at += 1
            if str(run.run_id).endswith(part):
                matches[run.run_id] = None
            if looked_at == _NEWEST:
                break
    if not matches:
        raise Refusal(
            f"no run has an id that begins with {part}, and none of the newest {looked_at:,} runs "
            f"has one that ends with it{await _meant(client, reference)}",
            NOT_FOUND,
        )
    if len(matches) > 1:
        some = ", ".join(map(str, islice(matches, _SHOWN)))
        rest = "" if len(matches) <= _SHOWN else ", …"
        fits = f"{len(matches)} runs" if len(matches) <= _SHOWN else "several runs"
        raise Refusal(f"{part} fits {fits}: {some}{rest}", USAGE)
    return (await client.runs.get(next(iter(matches)))).record


async def _meant(client: Client, key: str) -> str:
    """Return the names of the newest runs with a key, each once, as a question; "" if none."""
    if not key:
        return ""
    page = await client.runs.list(key=key, limit=_SHOWN)
    names = dict.fromkeys(f"{each.record.full_name}/{key}" for each in page.runs)
    return f" (did you mean {' or '.join(names)}?)" if names else ""


async def unknown_queue(client: Client, name: str) -> UnknownQueue:
    """Return the error for a message queue that there is not, with similar names."""
    similar = nearest(name, [each.settings.name for each in await client.queues.list()])
    meant = f" (did you mean {' or '.join(similar)}?)" if similar else ""
    return UnknownQueue(
        f"there is no message queue {name!r}{meant}: `holdfast queue list` names those that there "
        f"are, `holdfast queue create {name}` makes it"
    )


async def check_seen(store: Store, only: Sequence[str]) -> None:
    """Check that there are the apps and workflows that a caller is to see.

    Raises InvalidName, and UnknownWorkflow for one that has never had a worker here.
    """
    names = {
        full_name(each.app, name) for each in await store.list_apps() for name in each.workflows
    }
    names |= {each.name for each in await store.list_flows()}
    known = names | {split_name(each)[0] for each in names}
    for each in only:
        if check_reference("what is seen", each) not in known:
            similar = similar_name(each, known)
            meant = f" (did you mean {similar}?)" if similar else ""
            raise UnknownWorkflow(
                f"no app or workflow {each!r} has ever had a worker on this database{meant}: write "
                "an app or APP/WORKFLOW, and start its worker before"
            )
