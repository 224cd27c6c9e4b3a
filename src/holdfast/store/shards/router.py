"""Makes calls of the port as the tables of `routes` say."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final, TypeVar
from uuid import UUID

from holdfast.errors import DatabaseUnavailable, HoldfastError
from holdfast.store.shards import routes
from holdfast.store.shards.members import Members, gather, gather_parts
from holdfast.store.shards.merging import unite
from holdfast.store.shards.places import Places
from holdfast.types import Delivered, Delivery, Notice

T = TypeVar("T")


class ShardNotice(Notice, frozen=True, gc=False):
    """A wake-up for those who listen in one shard."""

    shard: int


class Router:
    """Knows the shards, and where runs are."""

    def __init__(self, members: Members, places: Places) -> None:
        self.members, self._places = members, places

    def find(self, name: str) -> Callable[..., Awaitable[Any]]:
        """Return what makes a call. Raises HoldfastError for one that clients do not make."""
        for table, make in MAKERS.items():
            if name in table:
                return partial(make, self, name)
        raise HoldfastError(
            f"{name} is a call of a worker, and each worker has one shard: this store is that of "
            "clients"
        )

    async def at_home(self, name: str, /, *args: Any, **options: Any) -> Any:
        """Ask shard 0."""
        return await self.members.call(0, name, *args, **options)

    async def of_run(self, name: str, /, first: Any, *args: Any, **options: Any) -> Any:
        """Ask the shard of the run that comes first."""
        number = await self._places.find_one(getattr(first, "run_id", first))
        return await self.members.call(number, name, first, *args, **options)

    async def of_runs(self, name: str, /, run_ids: Sequence[UUID], **options: Any) -> Any:
        """Ask the shards of the runs that come first, and merge their mappings."""
        asked = await self.apart(run_ids)
        found = await gather(
            self.members.call(number, name, which, **options) for number, which in asked.items()
        )
        return merged(found)

    async def change(self, name: str, /, targets: Sequence[Any], *args: Any, **options: Any) -> Any:
        """Change runs in their shards; the outcomes are in the order of the targets."""

        async def call(
            number: int, which: Sequence[int]
        ) -> tuple[Sequence[Delivery], Sequence[Notice]]:
            some = [targets[at] for at in which]
            told: Delivered = await self.members.call(number, name, some, *args, **options)
            return told.outcomes, told.notices

        places, lost = await self._places.find_most(map(run_of, targets))
        parts = in_parts(places.get(run_of(each)) for each in targets)
        found = await gather_parts(self.members, parts, call, lost)
        outcomes: list[Delivery] = in_order(parts, [each for each, _ in found])
        return Delivered(outcomes, notices_of(parts, [notices for _, notices in found]))

    async def everywhere(self, name: str, /, *args: Any, **options: Any) -> Any:
        """Call all shards; the answer is that of shard 0."""
        return (await self.members.each(name, *args, **options))[0]

    async def united(self, name: str, /, *args: Any, **options: Any) -> Any:
        """Return each entry of the lists of all shards once."""
        return unite(await self.present(name, *args, **options))

    async def first(self, name: str, /, *args: Any, **options: Any) -> Any:
        """Return the first answer that is something.

        Raises DatabaseUnavailable if none is, and a shard is away that may have it.
        """
        found = await self.members.present(name, *args, **options)
        answer = next((each for each in found.values() if each), None)
        if answer is None and (away := self.members.away(found)):
            which = ", ".join(map(str, away))
            raise DatabaseUnavailable(f"shard {which} is away, and may have what no other has")
        return answer

    async def present(self, name: str, /, *args: Any, **options: Any) -> list[Any]:
        """Return the answers of the shards that answer."""
        return list((await self.members.present(name, *args, **options)).values())

    async def apart(self, run_ids: Sequence[UUID]) -> dict[int, list[UUID]]:
        return by_shard(await self._places.find(run_ids))

    async def most_apart(self, run_ids: Sequence[UUID]) -> dict[int, list[UUID]]:
        """Return the runs by shard, without those that may be in one that is away.

        Raises DatabaseUnavailable if these are all.
        """
        found, lost = await self._places.find_most(run_ids)
        if lost is not None and not found:
            raise lost
        return by_shard(found)

    async def parts(self, items: Sequence[T], run_of: Callable[[T], UUID]) -> dict[int, list[int]]:
        """Return, by shard, the places of the items whose runs it has."""
        places = await self._places.find(run_of(each) for each in items)
        return in_parts(places[run_of(each)] for each in items)

    async def aligned(
        self, name: str, items: Sequence[T], run_of: Callable[[T], UUID], **options: Any
    ) -> list[Any]:
        """Ask about items in the shards of their runs; answers are in the order of the items."""
        parts = await self.parts(items, run_of)
        found = await gather(
            self.members.call(number, name, [items[at] for at in which], **options)
            for number, which in parts.items()
        )
        return in_order(parts, found)


class Routed:
    """A part of the store over shards."""

    def __init__(self, router: Router) -> None:
        self._router = router


MAKERS: Final[Mapping[frozenset[str], Callable[..., Awaitable[Any]]]] = {
    routes.HOME: Router.at_home,
    routes.OF_RUN: Router.of_run,
    routes.OF_RUNS: Router.of_runs,
    routes.CHANGES: Router.change,
    routes.EVERYWHERE: Router.everywhere,
    routes.UNITED: Router.united,
    routes.FIRST: Router.first,
}


def by_shard(places: Mapping[UUID, int]) -> dict[int, list[UUID]]:
    asked: dict[int, list[UUID]] = {}
    for run_id, number in places.items():
        asked.setdefault(number, []).append(run_id)
    return asked


def run_of(item: Any) -> UUID:
    """Return the run of an item, which may be the run's id itself."""
    run_id: UUID = getattr(item, "run_id", item)
    return run_id


def merged(found: Iterable[Mapping[Any, Any]]) -> dict[Any, Any]:
    """Return the entries of all mappings."""
    return dict(chain.from_iterable(each.items() for each in found))


def notices_of(numbers: Iterable[int], found: Iterable[Sequence[Notice]]) -> list[Notice]:
    """Return the wake-ups of answers, each for the shard that gave it."""
    return [
        ShardNotice(each.topic, each.payload, number)
        for number, notices in zip(numbers, found, strict=True)
        for each in notices
    ]


def in_parts(numbers: Iterable[int | None]) -> dict[int, list[int]]:
    """Return, by shard, the places of the items whose shards these are; without those of None."""
    parts: dict[int, list[int]] = {}
    for at, number in enumerate(numbers):
        if number is not None:
            parts.setdefault(number, []).append(at)
    return parts


def in_order(parts: Mapping[int, Sequence[int]], found: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the answers of shards in the order of the items that they are for."""
    answers: dict[int, Any] = {}
    for which, part in zip(parts.values(), found, strict=True):
        answers.update(zip(which, part, strict=True))
    return [answers[at] for at in range(len(answers))]
