"""The bases of the generated classes: they call an asynchronous client through a portal."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Never,
    NoReturn,
    ParamSpec,
    Self,
    TypeVar,
)
from uuid import UUID

from holdfast.client import Client
from holdfast.client.handle import RunHandle
from holdfast.client.message import Message
from holdfast.client.messages import MessageData
from holdfast.errors import ConfigurationError
from holdfast.store.postgres.executing import is_asynchronous
from holdfast.sync.docs import Documented
from holdfast.sync.portal import Portal, finish, make_immortal
from holdfast.types import Status
from holdfast.values.durations import Duration
from holdfast.values.suggestions import missing_attribute

G = TypeVar("G")
E = TypeVar("E")
P = ParamSpec("P")
Out_co = TypeVar("Out_co", covariant=True)
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], R]:
    """Return a method with the parameters of an asynchronous one, which waits for its result."""
    name = method.__name__

    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self._call(getattr(self._target, name), *args, **kwargs)
        return result

    return call


def making(
    make: Callable[[Portal, T], S], method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]
) -> Callable[Concatenate[Any, P], S]:
    """Return a method as `blocking` does; `make` makes its result of the asynchronous one."""
    name = method.__name__

    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> S:
        return make(self._portal, self._call(getattr(self._target, name), *args, **kwargs))

    return call


def each(make: Callable[[Portal, T], S]) -> Callable[[Portal, list[T]], list[S]]:
    """Return what makes a list of synchronous values of one of asynchronous ones."""
    return lambda portal, found: [make(portal, one) for one in found]


def iterating(
    method: Callable[Concatenate[Any, P], AsyncIterator[R]],
) -> Callable[Concatenate[Any, P], Generator[R]]:
    """Return a method with the parameters of one that yields asynchronously, which yields too."""
    name = method.__name__

    def iterate(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Generator[R]:
        found: Generator[R] = self._portal.iterate(getattr(self._target, name)(*args, **kwargs))
        return found

    return iterate


class Target(Client):
    """The client that a synchronous one calls."""

    def abandon(self) -> object:
        """Forget the connections, which are another process's; return them.

        Raises ConfigurationError if a store was given: only its maker can make another.
        """
        return self._session.abandon()


class SyncEntity(Generic[E]):
    """An entity of a key, as `SyncClient.entity` returns it."""

    def __init__(self, portal: Portal, target: E) -> None:
        """Hold an entity. Clients make them."""
        self._portal, self._target = portal, target

    def __repr__(self) -> str:
        return f"<SyncEntity {self._target!r}>"

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"SyncEntity has no {name}: a method of the class is called as .call(Class.{name}, …)"
        )

    def call(
        self,
        method: Callable[Concatenate[E, P], Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Call a method, and return its answer; see `Client.entity` for what it raises.

        ```python
        client.entity(Cart, "ann").call(Cart.add, "lamp")
        ```
        """
        name = getattr(method, "__name__", None)
        if name is None:
            raise TypeError(f"call takes a method of the class, such as Cart.add, not {method!r}")
        code: Callable[..., Coroutine[Any, Any, R]] = getattr(self._target, name)
        return self._portal.call(code(*args, **kwargs))


class SyncBase(Documented):
    """Opens and closes an asynchronous client, and calls its methods."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._portal = Portal(self._open_anew)

    if not TYPE_CHECKING:  # a type checker would accept every name

        def __getattr__(self, name: str) -> Never:
            """Raise AttributeError, which suggests a name that exists."""
            raise missing_attribute(self, name, vars(self))

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

        Raises ConfigurationError for a client of a given store, which belongs to the parent.
        """
        make_immortal(self._target.abandon())
        self.open()

    def close(self) -> None:
        """Finish the calls that are under way, send the last wake-ups and disconnect. Idempotent.

        ```python
        client.close()
        ```
        """
        self._portal.close(self._target.close)

    def entity(
        self, cls: type[E], key: str, *, call_id: str | None = None, timeout: Duration | None = None
    ) -> SyncEntity[E]:
        """Return the entity of a key, to call its methods; see `Client.entity`.

        ```python
        number = client.entity(Cart, "ann").call(Cart.add, "lamp")
        ```
        """
        target = self._target.entity(cls, key, call_id=call_id, timeout=timeout)
        return SyncEntity(self._portal, target)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(
        self, method: Callable[..., Coroutine[object, object, R]], *args: object, **kwargs: object
    ) -> R:
        return _call_through(self._portal, method, *args, **kwargs)


def _call_through(
    portal: Portal,
    method: Callable[..., Coroutine[object, object, R]],
    *args: object,
    **kwargs: object,
) -> R:
    connection = kwargs.get("connection")
    if connection is None:
        return portal.call(method(*args, **kwargs))
    if is_asynchronous(connection):
        raise ConfigurationError("the connection is asynchronous: use it with holdfast.Client")
    # The caller's connection belongs to the caller's thread.
    return finish(method(*args, **kwargs))


class SyncGroup(Documented, Generic[G]):
    """Calls the methods of a group of an asynchronous client."""

    def __init__(self, portal: Portal, target: G) -> None:
        """Hold a group. Clients make groups."""
        self._portal = portal
        self._target = target

    def _call(
        self, method: Callable[..., Coroutine[object, object, R]], *args: object, **kwargs: object
    ) -> R:
        return _call_through(self._portal, method, *args, **kwargs)


class SyncHandleBase(Documented, Generic[Out_co]):
    """Calls the methods of an asynchronous handle."""

    def __init__(self, portal: Portal, target: RunHandle[Out_co]) -> None:
        """Hold a run. Clients make handles: see `SyncClient.start` and `SyncClient.handle`."""
        self._portal = portal
        self._target = target

    if not TYPE_CHECKING:  # a type checker would accept every name

        def __getattr__(self, name: str) -> Never:
            """Raise AttributeError, which suggests a name that exists."""
            raise missing_attribute(self, name)

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
        self, method: Callable[..., Coroutine[object, object, R]], *args: object, **kwargs: object
    ) -> R:
        return self._portal.call(method(*args, **kwargs))


class SyncMessageBase(Documented, MessageData):
    """The values of a message, and calls of the methods of an asynchronous one."""

    _portal: Portal
    _target: Message

    def __init__(self, portal: Portal, target: Message) -> None:
        """Hold a message. Clients make messages: see `SyncQueues.receive`."""
        super().__init__(target.queue, target.receipt, target.group, target.stored, target.type)
        vars(self).update(_portal=portal, _target=target)  # it is frozen

    def _call(
        self, method: Callable[..., Coroutine[object, object, R]], *args: object, **kwargs: object
    ) -> R:
        return _call_through(self._portal, method, *args, **kwargs)
