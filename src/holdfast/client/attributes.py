"""Change the attributes and the tags of one run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from holdfast.client.naming import RunRef
from holdfast.client.session import Session
from holdfast.errors import RunNotFound
from holdfast.store.port.locks import persist
from holdfast.types import AttributeValue
from holdfast.values.attributes import check_changes
from holdfast.values.texts import check_tags


async def set_attributes(
    session: Session, run: RunRef, attributes: Mapping[str, AttributeValue | None]
) -> dict[str, AttributeValue]:
    """Change the attributes of a run, and return all of them. Raises RunNotFound."""
    changes, run_id = check_changes(attributes), await session.newest_of(run)
    found = await persist(partial(session.store.set_attributes, run_id, changes))
    if found is None:
        raise RunNotFound(run_id)
    return found


async def set_tags(
    session: Session,
    run: RunRef,
    tags: Iterable[str] | None,
    add: Iterable[str],
    remove: Iterable[str],
) -> list[str]:
    """Change the tags of a run, and return all of them. Raises RunNotFound."""
    given = None if tags is None else check_tags(tags)
    call = partial(session.store.set_tags, add=check_tags(add), remove=check_tags(remove))
    run_id = await session.newest_of(run)
    found = await persist(partial(call, run_id, given))
    if found is None:
        raise RunNotFound(run_id)
    return found
