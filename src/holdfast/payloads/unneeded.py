"""Objects of runs that are deleted: their contents for the archive, and their deletion."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from holdfast.codec import REFERENCE_MARK, Reference
from holdfast.errors import ConfigurationError, HoldfastError, ObjectsUnavailable
from holdfast.payloads.shelf import read_object
from holdfast.payloads.walking import references_in, with_contents
from holdfast.store.port import Store
from holdfast.types import UnneededPayloads
from holdfast.values.loggers import get_logger

logger = get_logger("holdfast.payloads")

_OWNERS: Final = 100  # that are looked at in one call
_AT_ONCE: Final = 16
_OWNER_SECONDS: Final = 60.0  # for the objects of one; the lease is ten minutes
LOST_SECONDS: Final = 60.0  # of a pass, with a URL that does not answer; then it is left alone
_READ_SECONDS: Final = 60.0


def refers(lines: Sequence[str]) -> bool:
    """Return True if lines of a run have references to objects."""
    return any(REFERENCE_MARK in line for line in lines)


async def with_objects(
    store: Store, lines: Sequence[str], *, skips_absent: bool = False
) -> list[str]:
    """Return the lines of a run with the contents of objects in place of references.

    With `skips_absent`, a reference to an object that is not there stays. Raises
    ObjectsUnavailable.
    """
    contents: dict[Reference, str] = {}
    for reference in references_in(list(lines)):
        try:
            async with asyncio.timeout(_READ_SECONDS):
                objects = store.objects_at(reference.url)
                if skips_absent and await objects.get(reference.name, 0, 1) is None:
                    logger.warning("an archived run lacks a payload: no %s", reference.place)
                    continue
                contents[reference] = await read_object(objects, reference)
        except TimeoutError:
            raise ObjectsUnavailable(reference.url, "no answer in time") from None
        except ConfigurationError as error:  # this process cannot open such a URL
            raise ObjectsUnavailable(reference.url, str(error)) from error
    return with_contents(list(lines), contents)


async def delete_unneeded(store: Store) -> int:
    """Delete the objects that no run needs any more; return of how many owners.

    What cannot be deleted now is tried again by a later call. A URL that does not answer costs one
    call a minute, however many owners have objects there.
    """
    limit, count, lost = asyncio.Semaphore(_AT_ONCE), 0, dict[str, float]()
    while due := await store.due_payloads(limit=_OWNERS):
        gone = await asyncio.gather(*(_delete(store, each, limit, lost) for each in due))
        deleted = [each for each, is_gone in zip(due, gone, strict=True) if is_gone]
        if deleted:
            await store.forget_payloads(deleted)
        count += len(deleted)
        if len(due) < _OWNERS:
            break
    return count


async def _delete(
    store: Store, owner: UnneededPayloads, limit: asyncio.Semaphore, lost: dict[str, float]
) -> bool:
    """Delete the objects of an owner. Return False if they are left; `lost` has seconds by URL."""
    time = asyncio.get_running_loop().time
    async with limit:
        if lost.get(owner.url, 0.0) >= LOST_SECONDS:
            return False
        began = time()
        try:
            async with asyncio.timeout(_OWNER_SECONDS):
                objects = store.objects_at(owner.url)
                async for name in objects.names(f"payloads/{owner.owner}/"):
                    await objects.delete(name)
                    began = time()  # it answers, however many objects there are
        except (HoldfastError, TimeoutError) as error:
            if owner.url not in lost:
                logger.warning(
                    "the objects of the deleted run %s in %s, and perhaps those of others, are "
                    "left for later: %s",
                    owner.owner,
                    owner.url,
                    str(error) or "no answer in time",
                )
            lost[owner.url] = lost.get(owner.url, 0.0) + time() - began
            return False
    return True
