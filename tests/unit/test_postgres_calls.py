"""Methods that are declared by what they call have the parameters of the port."""

from __future__ import annotations

import inspect
from typing import Any, cast

import pytest

from holdfast.store.port import Store
from holdfast.store.postgres import PostgresStore
from holdfast.store.postgres.calls import Call, each_row, first_row, no_answer, only_value
from holdfast.store.postgres.database import Database, Part


class Told:
    """A database that answers with what it was asked."""

    async def rows(self, *asked: object) -> list[Any]:
        return [asked]

    async def row(self, *asked: object) -> Any:
        return [asked]


class Declared(Part):
    list_deliveries = each_row(list[Any])
    find_reply = first_row(list[Any])
    sweep_limits: Call[object] = only_value()
    forget_waits = no_answer()


@pytest.fixture
def part() -> Declared:
    return Declared(cast(Database, Told()))


async def test_arguments_come_in_the_order_of_the_port_with_its_defaults(part: Declared) -> None:
    asked = await part.list_deliveries(limit=3, dead=True)
    assert asked == [["list_deliveries", True, None, 0, 3]]
    assert await part.find_reply("run", update_id="u") == ["find_reply", "run", "u"]
    assert await part.sweep_limits() == ("sweep_limits", 1000)
    await part.forget_waits("topic")


async def test_parameters_that_the_port_does_not_have_are_refused(part: Declared) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'most'"):
        await part.list_deliveries(most=3)
    with pytest.raises(TypeError, match="positional"):
        await part.list_deliveries(True)


async def test_a_declared_method_is_a_method_as_others(part: Declared) -> None:
    assert inspect.iscoroutinefunction(part.list_deliveries)
    assert inspect.iscoroutinefunction(Declared.find_reply)
    assert inspect.isfunction(vars(Declared)["list_deliveries"])
    assert "find_reply" not in vars(part)


async def test_one_that_is_overridden_is_called_once() -> None:
    class Base(Part):
        sweep_limits: Call[object] = only_value()

    class Counting(Base):
        calls = 0

        async def sweep_limits(self, *, limit: int = 1000) -> object:
            self.calls += 1
            return await super().sweep_limits(limit=limit)

    part = Counting(cast(Database, Told()))
    assert await part.sweep_limits(limit=2) == ("sweep_limits", 2)
    assert part.calls == 1


def test_the_store_has_the_parameters_of_the_port() -> None:
    methods = [name for name, _ in inspect.getmembers(Store, inspect.isfunction) if name[0] != "_"]
    for name in methods:
        port = inspect.signature(getattr(Store, name)).parameters.values()
        own = inspect.signature(getattr(PostgresStore, name)).parameters.values()
        shown = [(each.name, each.kind, each.default) for each in own]
        assert shown == [(each.name, each.kind, each.default) for each in port], name
    assert len(methods) > 100
