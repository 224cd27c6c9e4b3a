"""Which run a command line means: an id, a part of one, workflow/key, or app/workflow/key."""

from __future__ import annotations

from contextlib import aclosing
from itertools import islice
from uuid import UUID

from holdfast.cli.exits import NOT_FOUND, USAGE, Refusal
from holdfast.client import Client
from holdfast.client.filters import RunFilters
from holdfast.errors import RunNotFound, UnknownWorkflow
from holdfast.types import Run

_NEWEST = 2_000  # runs that a part of an id is looked for in
_SHORTEST = 4
_SHOWN = 5


async def find_run(client: Client, reference: str) -> Run:
    """Return the run that is meant.

    Raises:
        RunNotFound: there is none with this id, or with this workflow and key.
        Refusal: none of the newest runs, or more than one, has an id with this part.
    """
    if "/" in reference:
        return await _find_by_key(client, reference)
    try:
        return await client.get(UUID(reference))
    except ValueError:
        return await _find_by_part(client, reference.lower())


async def find_parent(client: Client, filters: RunFilters) -> RunFilters:
    """Return filters in which `parent`, as a command line names a run, is its id.

    A whole id needs no run: the children of one that was forgotten may be there.
    """
    parent = filters.get("parent")
    if not isinstance(parent, str):
        return filters
    try:
        return {**filters, "parent": UUID(parent)}
    except ValueError:
        return {**filters, "parent": (await find_run(client, parent)).run_id}


async def _find_by_key(client: Client, reference: str) -> Run:
    """Return the run of workflow/key or app/workflow/key; a key may have a slash as well."""
    parts = reference.split("/", 2)
    meant = [(parts[0], "/".join(parts[1:]))]
    if len(parts) == 3:
        meant.insert(0, (f"{parts[0]}/{parts[1]}", parts[2]))
    unknown: UnknownWorkflow | None = None
    for workflow, key in meant:
        try:
            return await client.get((workflow, key))
        except RunNotFound:
            pass
        except UnknownWorkflow as error:
            unknown = error
    workflow, key = meant[-1]
    if unknown is not None and len(meant) == 1:
        raise unknown
    raise Refusal(f"no run of {workflow} was started with the key {key!r}", NOT_FOUND)


async def _find_by_part(client: Client, part: str) -> Run:
    if len(part) < _SHORTEST or not all(each in "0123456789abcdef-" for each in part):
        raise Refusal(
            f"{part!r} names no run: write an id, at least {_SHORTEST} digits of its beginning "
            "or end, or workflow/key",
            USAGE,
        )
    looked_at, matches = 0, list[Run]()
    async with aclosing(client.runs(limit=500)) as newest:
        async for run in newest:
            looked_at += 1
            if _matches(run.run_id, part):
                matches.append(run)
            if looked_at == _NEWEST:
                break
    if not matches:
        raise Refusal(f"none of the newest {looked_at:,} runs has an id with {part}", NOT_FOUND)
    if len(matches) > 1:
        some = ", ".join(str(run.run_id) for run in islice(matches, _SHOWN))
        rest = "" if len(matches) <= _SHOWN else ", …"
        raise Refusal(f"{part} fits {len(matches)} runs: {some}{rest}", USAGE)
    return matches[0]


def _matches(run_id: UUID, part: str) -> bool:
    text = str(run_id)
    return text.startswith(part) or text.endswith(part) or run_id.hex.startswith(part)
