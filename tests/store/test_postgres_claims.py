"""Which tasks a claim takes, and when it says to ask again, against the rules written down once.

Few tasks, but in every state that a claim tells apart: the ranges that it searches are chosen by
their tasks, and if it skips a range by mistake, no worker takes its tasks.
"""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from uuid import UUID

import pytest
from scene import Scene, Session

NOW = datetime(2031, 1, 1, tzinfo=UTC)
NOW_MICROS = int(NOW.timestamp()) * 1_000_000
MS = 1_000
NEVER = 10**15
MOMENTS = [
    *(-3_600_000, -2_000, -500, -250, -200, -100, -99, -90, -1, 0, 1, 10, 11, 100, 250, 5_000),
    NEVER,
]
WRITE = """
    with run as (
        insert into holdfast.runs (run_id, name, version, queue, priority, input, created_at)
        values ($1, 'order', 1, $2, $4, '1', $9::timestamptz)
    ), event as (
        insert into holdfast.events (run_id, idx, event_type, at)
        values ($1, 0, 'WorkflowStarted', $9)
    )
    insert into holdfast.tasks (run_id, queue, handler, priority, visible_at, worker,
        sticky_worker, paused, attempts, lease_no)
    values ($1, $2, $3, $4,
        case when $5::int8 < 10 ^ 15 then $9::timestamptz + $5 * interval '1 ms'
            else 'infinity' end,
        $6::text, $7, $8, ($6 is not null)::int, ($6 is not null)::int)
"""
WORKERS = """
    insert into holdfast.workers (worker_id, hostname, pid, queues, handlers, concurrency,
        holdfast_version, started_at, heard_at, heard_since)
    select w.id, 'host', 1, '{}', '{}', 1, '0', $1, $1::timestamptz - w.ago, $1 - interval '1 min'
    from (values ('ann', interval '0'), ('rival', '1 s'), ('silent', '4 s')) as w (id, ago)
"""


@dataclass(frozen=True)
class Task:
    """A turn; moments are milliseconds from now."""

    run_id: UUID
    queue: str
    handler: str
    priority: int
    visible: int
    worker: str | None
    sticky: str | None
    paused: bool

    @property
    def order(self) -> tuple[int, int, UUID]:
        return self.priority, self.visible, self.run_id


@dataclass(frozen=True)
class Claim:
    """What a worker asks for, in milliseconds."""

    queues: tuple[str, ...]
    handlers: tuple[str, ...]
    limit: int
    ahead: int
    sticky: int
    since: int | None

    def takes(self, task: Task) -> bool:
        """Return True if a claim takes a task: free and due, or held by a lost worker."""
        if not self._serves(task):
            return False
        if task.worker is not None:
            return self.since is None and task.visible <= 0
        until = self.ahead - (self.sticky if task.sticky == "rival" else 0)
        return (self.since is None or task.visible > self.since) and task.visible <= until

    def waits_for(self, task: Task) -> bool:
        """Return True if a free task that was not taken becomes due later."""
        until = self.ahead - self.sticky
        return self._serves(task) and task.worker is None and until < task.visible < NEVER

    def _serves(self, task: Task) -> bool:
        return task.queue in self.queues and task.handler in self.handlers and not task.paused

    def expected(self, tasks: list[Task]) -> tuple[list[UUID], int | None]:
        """Return the runs that are taken, in order, and when to ask again."""
        taken = sorted(filter(self.takes, tasks), key=lambda task: task.order)[: self.limit]
        if len(taken) == self.limit:
            return [task.run_id for task in taken], 0
        return [task.run_id for task in taken], min(
            (
                task.visible + (self.sticky if task.sticky == "rival" else 0)
                for task in tasks
                if task not in taken and self.waits_for(task)
            ),
            default=None,
        )


def drawn(source: random.Random, count: int = 14) -> tuple[list[Task], Claim]:
    """Draw fewer tasks than `count`, of 14 never more than eight in a range, and a claim."""
    tasks = [
        Task(
            UUID(int=source.getrandbits(128)),
            source.choice("ab"),
            source.choice(("ship@1", "order@1", "order@2")),
            source.randrange(5),
            source.choice(MOMENTS),
            source.choice((None, None, None, "rival", "ann")),
            source.choice((None, None, "ann", "rival", "silent", "gone")),
            source.random() < 0.15,
        )
        for _ in range(source.randrange(count))
    ]
    return tasks, Claim(
        source.choice((("a",), ("b", "a"))),
        source.choice((("order@1",), ("ship@1", "order@2", "order@1"), ("rest@1", "ship@1"))),
        source.choice((1, 2, 5, 50)),
        source.choice((0, 10)),
        source.choice((100, 250)),
        source.choice((None, None, -500, -100)),
    )


async def claimed(
    session: Session, tasks: list[Task], claim: Claim, until: int | None = None
) -> tuple[list[UUID], float | None]:
    """Write the tasks, claim, and return the runs in order and when to ask again."""
    for task in tasks:
        await session.connection.execute(
            WRITE,
            task.run_id,
            task.queue,
            task.handler,
            task.priority,
            task.visible,
            task.worker,
            task.sticky,
            task.paused,
            NOW,
        )
    *found, whole = await session.call(
        "claim_tasks",
        "ann",
        claim.queues,
        claim.handlers,
        claim.limit,
        30.0,
        claim.ahead / 1_000,
        claim.sticky / 1_000,
        5,
        None if claim.since is None else NOW_MICROS + claim.since * MS,
        None if until is None else NOW_MICROS + until * MS,
    )
    again = whole["next_due_at"]
    return [row["run_id"] for row in found], None if again is None else (again - NOW_MICROS) / MS


@pytest.fixture
async def session(any_database_url: str) -> AsyncIterator[Session]:
    async with Scene.on(any_database_url) as scene:
        yield await scene.session()


@pytest.mark.parametrize("seed", range(4))
async def test_a_claim_takes_what_is_due_and_asks_again_when_the_next_is(
    session: Session, seed: int
) -> None:
    source = random.Random(seed)
    for _ in range(100):
        tasks, claim = drawn(source)
        transaction = session.transaction()
        await transaction.start()
        await session.connection.execute(f"set local holdfast.fake_now = '{NOW.isoformat()}'")
        await session.connection.execute(WORKERS, NOW)
        assert await claimed(session, tasks, claim) == claim.expected(tasks), (claim, tasks)
        await transaction.rollback()


@pytest.mark.parametrize("seed", range(2))
async def test_a_claim_among_many_tasks_never_asks_too_late(session: Session, seed: int) -> None:
    source = random.Random(seed)
    for _ in range(25):
        tasks, claim = drawn(source, count=60)
        tasks = [replace(task, priority=task.priority % 2, queue="a") for task in tasks]
        transaction = session.transaction()
        await transaction.start()
        await session.connection.execute(f"set local holdfast.fake_now = '{NOW.isoformat()}'")
        await session.connection.execute(WORKERS, NOW)
        taken, again = await claimed(session, tasks, claim)
        expected, latest = claim.expected(tasks)
        assert taken == expected, (claim, tasks)
        assert latest is None or (again is not None and again <= latest), (claim, tasks)
        await transaction.rollback()


TASKS: dict[str, list[tuple[int, str | None]]] = {
    "nothing": [],
    "later": [(5_000, None)],
    "due": [(-1, None)],
    "expired": [(-1, "rival")],
}


@pytest.mark.parametrize(
    ("case", "called"),
    [
        ("nothing", {"_look", "_has_expired"}),
        ("later", {"_look", "_has_expired"}),
        ("due", {"_look", "_has_expired", "_lock_due"}),
        ("expired", {"_look", "_has_expired", "_lock_due", "_expired"}),
    ],
)
async def test_a_search_for_expired_leases_calls_what_it_needs(
    session: Session, case: str, called: set[str]
) -> None:
    tasks = [
        Task(UUID(int=1), "a", "order@1", 2, visible, worker, None, paused=False)
        for visible, worker in TASKS[case]
    ]
    async with session.transaction():
        await session.connection.execute(f"set local holdfast.fake_now = '{NOW.isoformat()}'")
        await session.connection.execute("set local track_functions = 'all'")
        await claimed(session, tasks, Claim(("a",), ("order@1",), 5, 0, 250, None))
        found = await session.connection.fetch(
            "select funcname from pg_stat_xact_user_functions where funcname = any ($1)",
            ["_look", "_has_expired", "_lock_due", "_expired", "_next_due", "_given_to_steps"],
        )
    assert {row["funcname"] for row in found} == called


async def test_the_pages_of_a_search_are_those_of_relations_that_exist(session: Session) -> None:
    source = await session.connection.fetchval(
        "select prosrc from pg_proc where oid = 'holdfast._pages_of_tasks'::regproc"
    )
    names = re.findall(r"\$n\$(.*?)\$n\$", source)
    assert len(names) == 4
    for name in names:
        assert await session.connection.fetchval("select to_regclass($1)", name), name


@pytest.mark.parametrize("until", [None, -1, -3_600_000])
async def test_a_search_of_a_part_of_the_past_takes_over_the_lease_of_a_silent_worker(
    session: Session, until: int | None
) -> None:
    """Which workers are heard is asked for now, and not for the end of the part."""
    task = Task(UUID(int=1), "a", "order@1", 2, -7_200_000, "silent", None, paused=False)
    async with session.transaction():
        await session.connection.execute(f"set local holdfast.fake_now = '{NOW.isoformat()}'")
        await session.connection.execute(WORKERS, NOW)
        claim = Claim(("a",), ("order@1",), 5, 0, 250, None)
        assert (await claimed(session, [task], claim, until))[0] == [task.run_id]
