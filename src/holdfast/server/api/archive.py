"""Operations of the archive: restore a run."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import msgspec

from holdfast.errors import ObjectsUnavailable, RunExists
from holdfast.server.api.fields import Length
from holdfast.server.operations import Body, Call, Nothing, Operation


class RestoreBody(Body, frozen=True):
    """How long the run is kept from now on; by default as long as after its end."""

    retention: Length | None = None


class Restored(msgspec.Struct, frozen=True):
    """The run that is in the database again."""

    run_id: UUID


async def restore_run(call: Call[Nothing, RestoreBody]) -> Restored:
    """Make an archived run an ended run of the database again."""
    restored = await call.site.client.archive.restore(call.run_id, call.body.retention)
    return Restored(restored)


OPERATIONS: Final = (
    Operation(
        "POST /v1/runs/{run}/restore",
        "admin",
        restore_run,
        body_required=False,
        problems=(RunExists, ObjectsUnavailable),
    ),
)
