"""What a retry asks of the runs before it, where transactions keep results beside their data."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from holdfast.definitions.steps import Step
from holdfast.runtime.code.steps import Call
from holdfast.store.port.transactions import LAST_LEASE, lease_of
from holdfast.worker.left_ends import LeftEnds


class Table:
    """The table of results, by run; it counts the runs that were looked at."""

    def __init__(self) -> None:
        self.left, self.found = dict[UUID, str](), 0

    async def find(self, run_id: UUID, key: str, *, apart: bool) -> str | None:
        self.found += 1
        return self.left.get(run_id)

    async def give_up(self, run_id: UUID, key: str, lease_no: int) -> str | None:
        before = self.left.get(run_id)
        failed_by = -1 if before is None else lease_of(before)
        if failed_by is None or failed_by > lease_no:
            return before
        self.left[run_id] = f" {lease_no}"
        return None


async def _book() -> int:
    return 1


def call(number: int, *, takes: bool = True) -> Call:
    """Return the call of the run of a number, which retries all before it."""
    origins = tuple((UUID(int=before), 0, takes) for before in range(number - 1, 0, -1))
    return Call("book", Step(_book, name="book"), "book", "[]", UUID(int=number), origins=origins)


async def asked(table: Table, number: int, **given: Any) -> str | None:
    left = LeftEnds(call(number, **given), 0, 0, 1, 0)
    end = await left.close_origins(table)  # type: ignore[arg-type]
    return None if end is None else end.details


async def test_runs_that_an_attempt_before_has_asked_are_not_asked_again() -> None:
    """Fault: each call of the thousandth attempt asked all before it."""
    table = Table()
    assert await asked(table, 100) is None
    assert table.found == 100
    assert await asked(table, 101) is None
    assert await asked(table, 101) is None
    assert await asked(table, 104) is None
    assert table.found == 100 + 2 + 1 + 4
    assert lease_of(table.left[UUID(int=50)]) == LAST_LEASE


async def test_the_newest_result_is_taken() -> None:
    table = Table()
    table.left = {UUID(int=1): '{"result":1}', UUID(int=3): '{"result":3}'}
    assert await asked(table, 5) == '{"result":3}'
    assert await asked(table, 5) == '{"result":3}'


async def test_a_result_that_is_not_taken_stays_and_what_is_not_there_never_comes() -> None:
    table = Table()
    table.left = {UUID(int=1): '{"result":1}'}
    assert await asked(table, 3, takes=False) is None
    assert table.left[UUID(int=1)] == '{"result":1}'
    assert lease_of(table.left[UUID(int=2)]) == LAST_LEASE
