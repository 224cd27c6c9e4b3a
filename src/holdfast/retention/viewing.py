"""Look at an archived run as at one of the database: in a store of its own, in memory."""

from __future__ import annotations

from holdfast.retention.reading import ArchivedRun
from holdfast.store.port import Store
from holdfast.types import FlowShape


async def archived_store(archived: ArchivedRun, store: Store) -> Store:
    """Return a store that has an archived run alone.

    The steps of a flow's run are known from its shape: one that was archived without it has that
    of `store`, if it still has the version.
    """
    # Here, because every client can do this, few do, and that store takes long to import.
    from holdfast.store.memory import MemoryStore

    view, record = MemoryStore(), archived.record
    if record.kind == "flow":
        name, version = record.full_name, record.version
        shape = archived.shape or await store.shape_of_run(
            record.run_id, name, version, record.created_at
        )
        await view.ensure_flow(shape or FlowShape(name=name, version=version), "archived")
    await view.restore_run(archived.lines, retention_seconds=0)
    return view
