"""What a claim pays for tasks that are long gone, while vacuum is held back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import UUID

import asyncpg
import pytest
from contract.actors import ManualWorker, start
from scene import Scene, Session

from holdfast.store.postgres.claims import Look, PostgresClaims, Watermark
from holdfast.store.postgres.database import Database

pytestmark = pytest.mark.fresh_database

SECOND = 1_000_000
PASSED = """
    insert into holdfast.tasks (run_id, queue, handler, priority, visible_at)
    select gen_random_uuid(), 'default', 'order@1', 2,
        holdfast.now() - interval '{seconds} s' + n * interval '1 ms'
    from generate_series(1, {count}) as n
"""
PAGES = """
    select pg_stat_get_xact_blocks_fetched(t.oid) + (
        select sum(pg_stat_get_xact_blocks_fetched(i.indexrelid))
        from pg_index i where i.indrelid = t.oid)
    from pg_class t where t.oid = 'holdfast.tasks'::regclass
"""


@asynccontextmanager
async def dead_entries(scene: Scene, count: int, *, seconds: int = 300) -> AsyncIterator[None]:
    """Have tasks pass, with a transaction held open that keeps vacuum from their entries."""
    session = await scene.session()
    async with session.connection.transaction(isolation="repeatable_read"):
        await session.connection.fetchval("select count(*) from holdfast.runs")
        await scene.watcher.connection.execute(PASSED.format(count=count, seconds=seconds))
        await scene.watcher.connection.execute("delete from holdfast.tasks")
        yield


class OneSession(Database):
    """A database of which one connection is used, so that what it reads can be counted."""

    def __init__(self, session: Session) -> None:
        self.session = session

    async def rows(self, function: str, *arguments: object) -> list[asyncpg.Record]:
        return await self.session.call(function, *arguments)


@dataclass
class QuietWorker:
    """Claims every two seconds by its own clock, and counts the pages of tasks that this reads."""

    database: OneSession
    now: float = 0.0
    watermark: Watermark = field(init=False)
    claims: PostgresClaims = field(init=False)

    def __post_init__(self) -> None:
        self.watermark = Watermark(clock=lambda: self.now)
        self.claims = PostgresClaims(self.database)
        self.claims._watermarks["ann"] = {("order@1",): self.watermark}

    async def claim(self, *, after: float = 2) -> tuple[list[UUID], int]:
        """Claim once after so many seconds; return the runs, and the pages."""
        self.now += after
        async with self.database.session.transaction():
            before = await self._pages()
            claims = await self.claims.claim_tasks(
                "ann", ["default"], ["order@1"], 10, lease_seconds=30.0
            )
            return [task.run_id for task in claims.tasks], await self._pages() - before

    async def _pages(self) -> int:
        pages: int = await self.database.session.connection.fetchval(PAGES)
        return pages


@pytest.fixture
async def ann(scene: Scene) -> QuietWorker:
    return QuietWorker(OneSession(await scene.session()))


@pytest.mark.parametrize("seconds", [110, 86_400])
async def test_a_quiet_workers_claims_stay_cheap_beside_dead_entries(
    scene: Scene, ann: QuietWorker, seconds: int
) -> None:
    """Trap 28, storage rule 18. 100,000 tasks passed, just now or yesterday."""
    async with dead_entries(scene, 100_000, seconds=seconds):
        _, everything = await ann.claim()
        learning = sum([(await ann.claim())[1] for _ in range(100)])
        prices = [(await ann.claim())[1] for _ in range(100)]
    assert everything > 1_500, "the entries are not there: the test shows nothing"
    assert max(prices) < 500
    assert sum(prices) < 100 * 300
    assert learning < 10 * everything + 100 * 300


async def test_what_was_committed_late_among_dead_entries_is_found(
    scene: Scene, ann: QuietWorker
) -> None:
    """Storage rule 18. It came due long before the watermark, behind and between what is gone."""
    async with dead_entries(scene, 50_000, seconds=600):
        for _ in range(60):
            await ann.claim()
        for ago in (3600, 590, 560, 30):
            run_id = await start(scene.store)
            await scene.value(
                "update holdfast.tasks set visible_at = holdfast.now() - $2 * interval '1 s' "
                "where run_id = $1",
                run_id,
                ago,
            )
            found = [(await ann.claim())[0] for _ in range(100)]
            assert [run_id] in found, f"it came due {ago} s ago"


async def test_much_that_was_committed_late_is_claimed_without_a_pause(
    scene: Scene, ann: QuietWorker
) -> None:
    """Storage rule 18. A map begins all its tasks in one transaction, which may take long."""
    for _ in range(60):
        await ann.claim()
    started = {await start(scene.store) for _ in range(45)}
    await scene.watcher.connection.execute(
        "update holdfast.tasks set visible_at = holdfast.now() - interval '1 minute'"
    )
    found = [run_id for after in (2, 0, 0, 0, 0) for run_id in (await ann.claim(after=after))[0]]
    assert len(found) == 45
    assert set(found) == started


async def test_a_lease_that_ran_out_is_found_by_the_next_claim_of_a_quiet_worker(
    scene: Scene, ann: QuietWorker
) -> None:
    """S12. However much lies behind it."""
    bob = ManualWorker(scene.store, "bob")
    async with dead_entries(scene, 50_000):
        for _ in range(60):
            await ann.claim()
        run_id = await start(scene.store)
        await bob.take(lease_seconds=0.0)
        assert (await ann.claim())[0] == [run_id]


async def test_all_rows_are_searched_again_after_vacuum(scene: Scene, ann: QuietWorker) -> None:
    """Storage rule 18."""
    async with dead_entries(scene, 50_000):
        for _ in range(60):
            await ann.claim()
        assert ann.watermark.is_cut
    await scene.watcher.connection.execute("vacuum holdfast.tasks")
    for _ in range(200):
        await ann.claim()
    assert not ann.watermark.is_cut
    assert (await ann.claim())[1] < 100


def test_watermark_follows_the_claims_and_looks_at_everything_now_and_then() -> None:
    """Trap 28, storage rule 18."""
    watermark = Watermark(clock=lambda: 0.0)
    assert watermark.looks() == [Look()]
    watermark.paid(Look(), 5_000_000, 10)
    watermark.advance(5_000_000, 5_000_000, wanting=False)
    assert watermark.looks() == [Look(4_000_000)]
    watermark.advance(5_000_000, None, wanting=False)
    assert watermark.looks() == [Look(4_000_000)]
    watermark = Watermark(reached=5_000_000)
    assert [Look()] in [watermark.looks() for _ in range(60)]


def test_claim_that_found_too_little_soon_searches_all_rows() -> None:
    """Storage rule 18. What came due long ago and was committed late is not left behind."""
    watermark = Watermark(reached=5_000_000, wanting=True)
    assert watermark.looks() == [Look()]


def test_a_claim_for_the_next_suspect_searches_expired_leases_at_once() -> None:
    """Trap 10. Whatever the last search has cost, and however short ago it was."""
    watermark = Watermark(clock=lambda: 0.0)
    watermark.looks()
    watermark.paid(Look(), 5_000_000, 100)
    watermark.advance(5_000_000, 5_000_000, wanting=True)
    assert watermark.looks() == [Look(4_000_000)]
    assert watermark.looks(seeks_leases=True) == [Look()]


def test_a_watermark_ahead_of_the_clock_starts_again() -> None:
    """S12. The database's clock was set back: what comes due is before what came."""
    watermark = Watermark(reached=5_000 * SECOND)
    watermark.advance(1_000 * SECOND, None, wanting=True)
    assert watermark.looks() == [Look()]
