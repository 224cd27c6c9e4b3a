"""`client.entities`: the entities of apps, as clients call, read and delete them."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast
from uuid import UUID, uuid4

from holdfast.client.control import cancel_run
from holdfast.client.session import Group, Session
from holdfast.codec import encode
from holdfast.definitions.entities import Entity, Method, Proxy, entity_of
from holdfast.definitions.entity_access import Access, next_life
from holdfast.errors import ResultTimeout, RunEnded
from holdfast.types import NewRun, NewSignal, StartedRun
from holdfast.values.durations import Duration, seconds
from holdfast.values.texts import check_id

E = TypeVar("E")

_MOST_KNOWN = 10_000  # newest runs that a client remembers: each is a question less


class _Options(NamedTuple):
    """The options of calls: `timeout` is in seconds."""

    call_id: str | None
    timeout: float | None


class Entities(Group):
    """Entities by their class and their key; `client.entity` calls their methods."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._newest: dict[UUID, UUID] = {}  # of a key's first run, the last known to be its newest

    async def get(self, cls: type[E], key: str) -> E:
        """Return a copy of an entity as its last change has left it, without waking it.

        For a key that was never called, it is the object as the first call would find it. Raises
        InvalidInput for a state that does not fit the class.

        ```python
        cart = await client.entities.get(Cart, "ann")
        print(cart.items)
        ```
        """
        entity = entity_of(cls)
        return cast("E", entity.read(await self._access.read(entity, key)))

    async def delete(
        self,
        cls: type[object],
        key: str,
        reason: str | None = None,
        *,
        timeout: Duration | None = None,
    ) -> bool:
        """Delete an entity, and wait for its end; return False if there is none.

        A change that is being made is cancelled. The next call begins with a new object, as do
        calls that wait. The last state can be read in its run until the retention is over. Raises
        ResultTimeout if no worker has ended it after `timeout`: it is deleted later.

        ```python
        await client.entities.delete(Cart, "ann", "the order was placed")
        ```
        """
        session, entity = self._session, entity_of(cls)
        limit = None if timeout is None else seconds(timeout)
        status = "continued"
        while status == "continued":  # while it was told, too
            run_id = await session.newest_of((entity, key))
            record = (await session.store.get_runs([run_id], payloads=False)).get(run_id)
            if record is None or record.status != "running":
                return False
            await cancel_run(session, run_id, reason)
            status = (await session.ends.wait(run_id, limit)).status
        return True

    @property
    def _access(self) -> Access:
        session = self._session
        return Access(session.store, session.signals.submit, self._start)

    async def _start(self, run: NewRun) -> StartedRun:
        with self._session.traced_starts([run]) as (traced,):
            return await self._session.starts(run.kind).submit(traced)

    async def _call(
        self, options: _Options, entity: Entity, key: str, method: Method, payload: Any
    ) -> object:
        if method.reads:
            text = await self._access.read(entity, key)
            return entity.run_read(method, text, method.decode(encode(payload)))
        new = entity.new_run(key)
        answer = await self._ask(new, method.name, encode(payload), options)
        return method.result.decode(answer)

    async def _ask(self, new: NewRun, name: str, payload: str, options: _Options) -> str:
        """Send a call, and return its answer as JSON text."""
        replies, access, first = self._session.replies, self._access, new.run_id
        entity = f"{new.name} {new.key!r}"
        await replies.listen()
        update_id, timeout, run_id = options.call_id, options.timeout, first
        if update_id is None:  # nobody had it before: only the newest run needs to be asked
            update_id = str(uuid4())
            run_id = self._newest.get(first) or await access.newest(first)
        signal = NewSignal(run_id, name, payload, update_id, True, replies.topic)
        with (
            replies.expect(update_id) as woken,
            self._session.traced_signals([signal]) as (signal,),
        ):
            while True:
                outcome, run_id = await access.deliver(new, signal, run_id)
                self._remember(first, run_id)
                limit, delivered = asyncio.timeout(timeout), outcome == "delivered"
                try:
                    return await replies.find(
                        run_id, update_id, woken, limit, delivered=delivered, entity=entity
                    )
                except RunEnded as error:  # it may have been deleted before it began with the call
                    ended = error.run_id or run_id
                    if await replies.was_begun(ended, update_id):
                        raise
                    new = next_life(new, ended, error.status)
                    run_id = new.run_id
                except TimeoutError:
                    if timeout is None or not limit.expired():
                        raise
                    awaited = f"answered {name} of {entity} (call id {update_id})"
                    raise ResultTimeout(run_id, timeout, awaited) from None

    def _remember(self, first: UUID, newest: UUID) -> None:
        if len(self._newest) >= _MOST_KNOWN:
            self._newest.clear()
        self._newest[first] = newest


def bind(
    entities: Entities, cls: type[E], key: str, call_id: str | None, timeout: Duration | None
) -> E:
    """Return an entity to call; see `Client.entity`."""
    limit = None if timeout is None else seconds(timeout)
    options = _Options(None if call_id is None else check_id("call id", call_id), limit)
    call = partial(entities._call, options)  # pyright: ignore[reportPrivateUsage]
    entity = entity_of(cls)
    proxy = Proxy(entity, key, call)
    entity.first_state(key)  # a key that the class refuses must not start a run
    return cast("E", proxy)
