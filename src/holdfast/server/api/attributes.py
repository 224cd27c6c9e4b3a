"""Operations that change the attributes and the tags of one run."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from holdfast.server.api.fields import Key, Tags
from holdfast.server.operations import Body, Call, ForAgents, Nothing, Operation
from holdfast.types import AttributeValue


class AttributeBody(Body, frozen=True):
    """Attributes to set by name; a null removes one."""

    attributes: Annotated[dict[Key, AttributeValue | None], Meta(max_length=100)]


class RunAttributes(msgspec.Struct, frozen=True):
    """All attributes that the run has now."""

    attributes: dict[str, AttributeValue]


class TagBody(Body, frozen=True):
    """With `tags` all tags of the run; else those to add and to remove."""

    tags: Tags | None = None
    add: Tags = ()
    remove: Tags = ()


class RunTags(msgspec.Struct, frozen=True):
    """All tags that the run has now."""

    tags: list[str]


async def set_attributes(call: Call[Nothing, AttributeBody]) -> RunAttributes:
    """Set attributes of a run, open or ended; a null removes one."""
    changes = call.body.attributes
    return RunAttributes(await call.site.client.runs.set_attributes(call.run_id, changes))


async def set_tags(call: Call[Nothing, TagBody]) -> RunTags:
    """Change the tags of a run, open or ended."""
    body = call.body
    tags = await call.site.client.runs.set_tags(
        call.run_id, body.tags, add=body.add, remove=body.remove
    )
    return RunTags(tags)


OPERATIONS: Final = (
    Operation(
        "POST /v1/runs/{run}/attributes",
        "write",
        set_attributes,
        tool=ForAgents(about="Set attributes of a run, by which it is found; a null removes one."),
    ),
    Operation(
        "POST /v1/runs/{run}/tags",
        "write",
        set_tags,
        tool=ForAgents(about="Change the tags of a run: all of them, or those to add and remove."),
    ),
)
