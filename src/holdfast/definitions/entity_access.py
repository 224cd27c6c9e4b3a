"""How entities are reached: a call goes to the newest run of a key, and starts it if need be."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final
from uuid import UUID

import msgspec

from holdfast.definitions.entities import STATE, Entity, Given
from holdfast.definitions.lifespan import Lifespan
from holdfast.errors import ConfigurationError, RunEnded, RunNotFound
from holdfast.store.port import Store
from holdfast.store.port.shards import MayBeAway
from holdfast.types import (
    Delivery,
    Event,
    NewRun,
    NewSignal,
    Notice,
    RulesOfStart,
    StartedRun,
    continued_as,
)
from holdfast.values.ids import keyed_run_id, retry_run_id


class Access(msgspec.Struct, frozen=True):
    """Finds the runs of entities in a store, and reaches them."""

    store: Store
    send: Callable[[NewSignal], Awaitable[Delivery]]
    start: Callable[[NewRun], Awaitable[StartedRun]]

    async def newest(self, run_id: UUID) -> UUID:
        """Return the last run that a run continued as, or its own id if it is not found."""
        try:
            return (await self.store.newest_runs([run_id])).get(run_id, run_id)
        except MayBeAway:
            return run_id

    async def deliver(self, run: NewRun, signal: NewSignal, run_id: UUID) -> tuple[Delivery, UUID]:
        """Send a call to an entity, from its run `run_id` on; start `run` if there is none.

        Goes run by run, as each may have had the call already. Return the outcome, and the run
        that has the call. Raises RunEnded if the entity's run has failed.
        """
        while True:
            try:
                outcome = await self.send(msgspec.structs.replace(signal, run_id=run_id))
            except MayBeAway:  # its start needs no other shard than those that its key names
                outcome = "missing"
            if outcome == "missing":
                if run_id != run.run_id or (await self.start(run)).refused is not None:
                    # All were deleted that the caller knew, or that `run` comes after.
                    run_id = keyed_run_id(run.name, run.key or "")
                    run = msgspec.structs.replace(run, run_id=run_id, rules=None)
            elif outcome != "ended":
                return outcome, run_id
            elif record := (await self.store.get_runs([run_id])).get(run_id):
                if next_id := continued_as(record):
                    run_id = next_id
                else:
                    run = next_life(run, run_id, record.status)
                    run_id = run.run_id

    async def answer(self, run_id: UUID, call_id: str) -> Event | None:
        """Return the answer to a call that a run was given, None while there is none.

        Raises RunNotFound and RunEnded if there will be none.
        """
        while True:
            record = (await self.store.get_runs([run_id])).get(run_id)
            if found := await self.store.find_reply(run_id, call_id):
                return found
            if record is None:
                raise RunNotFound(run_id)
            if record.status == "running":
                return None
            if (next_id := continued_as(record)) is None:
                raise RunEnded(run_id, record.status)
            run_id = next_id

    async def read(self, entity: Entity, key: str) -> str:
        """Return the last recorded state of an entity, without waking it."""
        run_id = entity.new_run(key).run_id
        while True:
            run_id = await self.newest(run_id)
            record = (await self.store.get_runs([run_id])).get(run_id)
            if record is None:
                return entity.first_state(key)
            if record.status == "running":
                values = (await self.store.get_values([run_id])).get(run_id, {})
                if STATE in values:
                    return values[STATE]
                given = msgspec.json.decode(record.input or "null", type=Given)
                if given.state is msgspec.UNSET:
                    return entity.first_state(key)
                return bytes(given.state).decode()
            if record.status != "continued":
                run_id = _life_after(run_id, record.status)


def next_life(run: NewRun, last: UUID, status: str) -> NewRun:
    """Return the run that takes the key of an entity that was deleted, whose run `last` was.

    Raises RunEnded if it has failed: a retry may bring it back, with its state.
    """
    rules = msgspec.json.encode(RulesOfStart(after=last)).decode()
    return msgspec.structs.replace(run, run_id=_life_after(last, status), rules=rules)


def _life_after(last: UUID, status: str) -> UUID:
    if status not in ("cancelled", "terminated"):
        raise RunEnded(last, status)
    return retry_run_id(last)


def access_to(store: Store, notify: Callable[[list[Notice]], None]) -> Access:
    """Return the access of a worker, whose store gives the wake-ups to send."""

    async def send(signal: NewSignal) -> Delivery:
        delivered = await store.signal_runs([signal])
        notify(delivered.notices)
        return delivered.outcomes[0]

    async def start(run: NewRun) -> StartedRun:
        [started], notices = await store.start_runs([run])
        notify(notices)
        return started

    return Access(store, send, start)


def _no_access() -> Any:
    raise ConfigurationError("workers open it")


ACCESS: Final[Lifespan[Access]] = Lifespan(_no_access)
"""How steps of a worker reach entities."""
