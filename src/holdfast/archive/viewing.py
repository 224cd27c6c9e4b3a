"""Look at an archived run as at one of the database: in a store of its own, in memory."""

from __future__ import annotations

from holdfast.archive.reading import ArchivedRun
from holdfast.store.port import Store
from holdfast.types import FlowShape


async def archived_store(archived: ArchivedRun, store: Store) -> Store:
    """Return a store that has an archived run alone.

    The steps of a flow's run are known if `store` still has the shape of its version.
    """
    # Here, because every client can do this, few do, and that store takes long to import.
    from holdfast.store.memory import MemoryStore

    view, record = MemoryStore(), archived.record
    if record.kind == "flow":
        shape = await store.get_flow(record.full_name, record.version)
        await view.ensure_flow(
            shape or FlowShape(name=record.full_name, version=record.version), "archived"
        )
    await view.restore_run(archived.lines, retention_seconds=0)
    return view
