"""What the generated classes stand on: a client behind a portal."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Generic, Self, TypeVar
from uuid import UUID

from holdfast.client import Client
from holdfast.client.handle import RunHandle
from holdfast.client.transactions import is_asynchronous
from holdfast.definitions.app import App
from holdfast.errors import ConfigurationError
from holdfast.store.port import Store
from holdfast.sync.portal import Portal, finish, make_immortal
from holdfast.types import Status

Out_co = TypeVar("Out_co", covariant=True)
R = TypeVar("R")


class _Target(Client):
    """The client behind a synchronous one."""

    def abandon(self) -> object:
        """Forget the connections, which are another process's; return them.

        Raises ConfigurationError where a store was given: only who made it can make another.
        """
        if self._given is not None:
            raise ConfigurationError(
                "this client was opened with a store before the process was forked: make a store "
                "and a client in the child"
            )
        left = self._session, self._opened
        self._session = self._opened = None
        return left


class SyncBase:
    """Opens and closes an asynchronous client, and calls its methods."""

    def __init__(
        self,
        database: str | None = None,
        *,
        schema: str = "holdfast",
        app: App | None = None,
        store: Store | None = None,
        prepare: bool | None = None,
        listen_database: str | None = None,
    ) -> None:
        """Say where the runs are; `open`, or a `with`, connects.

        A `store` is used as it is, and is not closed with the client. Statements are prepared
        by name unless a connection pooler is seen in between; `prepare` decides it. Behind a
        pooler in transaction mode `listen_database` is the server's own address, for
        notifications; without it ends are found by looking, within seconds.
        """
        self._target = _Target(
            database,
            schema=schema,
            app=app,
            store=store,
            prepare=prepare,
            listen_database=listen_database,
        )
        self._portal = Portal(self._open_anew)

    def open(self) -> Self:
        """Connect, and check the schema. Idempotent.

        Raises DatabaseError: its subclasses say what is wrong with the database or its schema.

        ```python
        client = SyncClient("postgresql:///shop").open()
        ```
        """
        self._portal.open()
        try:
            self._portal.call(self._target.open())
        except BaseException:
            self._portal.close()
            raise
        return self

    def _open_anew(self) -> None:
        """Open in a process that was forked while the client was open in its parent.

        Raises ConfigurationError for a client of a given store, which is the parent's.
        """
        make_immortal(self._target.abandon())
        self.open()

    def close(self) -> None:
        """Finish what is under way, send the last wake-ups and disconnect. Idempotent.

        ```python
        client.close()
        ```
        """
        if self._portal.is_open:
            try:
                self._portal.call(self._target.close())
            finally:
                self._portal.close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _call(
        self,
        method: Callable[..., Coroutine[object, object, R]],
        *args: object,
        **kwargs: object,
    ) -> R:
        connection = kwargs.get("connection")
        if connection is None:
            return self._portal.call(method(*args, **kwargs))
        if is_asynchronous(connection):
            raise ConfigurationError("the connection is asynchronous: it takes holdfast.Client")
        # The caller's connection belongs to the caller's thread.
        return finish(method(*args, **kwargs))


class SyncHandleBase(Generic[Out_co]):
    """Calls the methods of an asynchronous handle."""

    def __init__(self, portal: Portal, target: RunHandle[Out_co]) -> None:
        """Hold a run. Clients make handles: see `SyncClient.start` and `SyncClient.handle`."""
        self._portal = portal
        self._target = target

    def __repr__(self) -> str:
        return f"<SyncRunHandle {self.run_id}>"

    @property
    def run_id(self) -> UUID:
        """The run's id."""
        return self._target.run_id

    @property
    def already_existed(self) -> bool:
        """Whether the start, fork or retry found a run that was there before."""
        return self._target.already_existed

    @property
    def status_at_start(self) -> Status | None:
        """The status that the run had then, None for a handle made from an id."""
        return self._target.status_at_start

    def _call(
        self,
        method: Callable[..., Coroutine[object, object, R]],
        *args: object,
        **kwargs: object,
    ) -> R:
        return self._portal.call(method(*args, **kwargs))
