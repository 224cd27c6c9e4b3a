"""The tests that are left out over several databases are there."""

from __future__ import annotations

from pathlib import Path

from holdfast.types import NewRun, RunFilter
from holdfast.values.ids import uuid7
from tests.shards.differences import REASONS
from tests.shards.spread import spread
from tests.shards.test_settings import hear

STORE = Path(__file__).parents[1] / "store"


def test_what_is_left_out_is_there() -> None:
    for place in REASONS:
        file, _, name = place.partition("::")
        assert f"def {name or 'test_'}" in (STORE / file).read_text(), place


async def test_the_store_of_the_others_works() -> None:
    """`make test-shards` alone uses it: what it calls of the router must be there."""
    store = spread(2)
    await store.open()
    await hear(store)
    await store.start_runs([NewRun(run_id=uuid7(), name="shop/order") for _ in range(4)])
    [worker] = await store.list_workers()
    assert (worker.worker_id, worker.shard) == ("ann", None)
    assert len((await store.list_runs(RunFilter())).runs) == 4
    await store.close()
