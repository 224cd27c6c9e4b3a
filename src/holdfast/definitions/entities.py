"""`@app.entity`: classes whose objects are runs, one a key, with methods that callers await."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import Any, Final, Protocol, TypeVar, cast, overload
from uuid import UUID

import msgspec

from holdfast.codec import encode_sorted, removed_fields, summarize
from holdfast.definitions.jobs import arguments_of, given_arguments
from holdfast.definitions.signatures import Declared, Signature
from holdfast.definitions.starts import prepare
from holdfast.definitions.workflows import Registry, Workflow
from holdfast.errors import ConfigurationError, InvalidInput
from holdfast.types import DEFAULT_QUEUE, NewRun
from holdfast.values.durations import Duration
from holdfast.values.names import check_signal_name
from holdfast.values.texts import check_id

E = TypeVar("E")
F = TypeVar("F", bound=Callable[..., Awaitable[object]])

STATE: Final = "state"  # the value of the run in which each change leaves the state
_READS, _ENTITY = "__holdfast_reads__", "__holdfast_entity__"


def reads(method: F) -> F:
    """Say that a method of an entity only reads: callers run it on the last recorded state.

    ```python
    @reads
    async def total(self) -> int:
        return sum(self.items.values())
    ```
    """
    setattr(method, _READS, True)
    return method


class Given(msgspec.Struct, omit_defaults=True):
    """The input of an entity's run: its key, and the state that the run before it left."""

    key: str | None = None
    state: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class SentCall(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What the log of a caller has of a call: its id, and the entity's run that was given it.

    If the run that the caller retries may have sent the call before, `was_sent` is True.
    """

    call_id: str
    entity_run_id: UUID
    was_sent: bool = False


class Method:
    """A method of an entity: a change, or a read."""

    kind: Final = "method"

    def __init__(self, owner: str, name: str, fn: Callable[..., Any]) -> None:
        self.fn, self.reads, self.name = fn, hasattr(fn, _READS), name
        self._full_name = f"{owner}.{name}"
        if not inspect.iscoroutinefunction(fn):
            raise ConfigurationError(
                f"entity method {self._full_name} must be an async function, as its callers await "
                "it; begin the name of a helper with _"
            )
        check_signal_name(name)
        self.signature = Signature(fn, self._full_name, bound=True)
        why = "callers give the arguments of a method by name"
        self._arguments = Declared.of_type(
            arguments_of(self, f"{self._full_name} cannot be a method of an entity", why),
            f"arguments of {self._full_name}",
        )
        self.result = Declared(fn, "return", f"result of {self._full_name}")

    def encode(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Any:
        """Return the payload of a call. Raises TypeError for arguments that it does not take."""
        kind = cast("type[msgspec.Struct]", self._arguments.annotation)
        payload = kind(**self.signature.by_name(args, kwargs))
        self._arguments.encode(payload)
        return payload

    def decode(self, payload: msgspec.Raw | str) -> dict[str, Any]:
        """Return the arguments in a payload by name. Raises InvalidInput."""
        text = bytes(payload).decode() if isinstance(payload, msgspec.Raw) else payload
        return given_arguments(self._arguments.decode("{}" if text == "null" else text))


class Entity(Workflow[Given, None]):
    """An entity's class as a workflow: each of its objects is the newest run of a key."""

    def __init__(self, cls: type[Any], registry: Registry, **options: Any) -> None:
        """Raises ConfigurationError for a class that cannot be an entity, saying why."""
        self.cls, name = cls, cls.__name__
        if not dataclasses.is_dataclass(cls):
            raise ConfigurationError(
                f"entity {name} is not a dataclass: its state is stored by its fields, so write "
                "@dataclass below @app.entity"
            )
        self.fields: Final = {field.name: field for field in dataclasses.fields(cls)}
        missing = dataclasses.MISSING
        for each in self.fields.values():
            bare = each.default is missing and each.default_factory is missing
            if each.name != "key" and (bare or not each.init):
                raise ConfigurationError(
                    f"entity {name}: the field {each.name} needs a default that the constructor "
                    "takes: the first call of a key makes the object, from its key alone, which "
                    "a field with the name `key` gets"
                )
        functions = inspect.getmembers(cls, inspect.isfunction)
        public = {name: fn for name, fn in functions if not name.startswith("_")}
        self.methods: Final = {each: Method(name, each, fn) for each, fn in public.items()}
        self.state: Final = Declared.of_type(cls, f"state of {name}")

        async def serve(ctx: Any, given: Given = Given()) -> None:
            await ctx.serve_entity(self, given)

        serve.__doc__ = cls.__doc__
        serve.__annotations__ = {"ctx": Any, "given": Given}
        options["name"] = name if options.get("name") is None else options["name"]
        super().__init__(serve, registry=registry, **options)
        lines = {fn.__code__.co_firstlineno: fn for fn in public.values()}
        self.written = lines[min(lines)] if lines else serve

    def method(self, name: str) -> Method:
        """Return a method. Raises InvalidInput if the class does not have it."""
        if name not in self.methods:
            known = ", ".join(sorted(self.methods)) or "no methods"
            raise InvalidInput(f"entity {self.name} has no method {name!r}; it has {known}")
        return self.methods[name]

    def first_state(self, key: str) -> str:
        """Return the state of an entity that was never called.

        Raises InvalidInput if the class cannot make its object.
        """
        try:
            return self.write(self.cls(key=key) if "key" in self.fields else self.cls())[0]
        except Exception as error:
            raise InvalidInput(f"{self.name} {key!r}: {summarize(error)}") from error

    def write(self, found: object) -> tuple[str, Any]:
        """Return an object's state as JSON text, and the object as it comes back from it.

        Raises InvalidInput and PayloadError for a state that would not come back.
        """
        if lost := getattr(found, "__dict__", {}).keys() - self.fields.keys():
            raise InvalidInput(
                f"{self.name}.{min(lost)} is not a field of the class, and would be lost: declare "
                "it, with a default"
            )
        return self.state.encode_and_restore(found)

    def read(self, text: str) -> Any:
        """Return the object of a state. Raises InvalidInput for one of another shape."""
        try:
            found = self.state.decode(text)
            lost = removed_fields(text, found)
        except InvalidInput:
            raise
        except Exception as error:  # of the class's own code
            raise InvalidInput(f"state of {self.name}: {summarize(error)}") from error
        if lost:
            raise InvalidInput(
                f"state of {self.name}: it has {', '.join(sorted(lost))}, which the class does not"
            )
        return found

    def run_read(self, method: Method, text: str, kwargs: Mapping[str, Any]) -> Any:
        """Run a read on a state, and return its result.

        Raises ConfigurationError if it waits, or changes the state.
        """
        found = self.read(text)
        code = method.fn(found, **kwargs)
        what = f"{self.name}.{method.name} is a read, and"
        try:
            code.send(None)
        except StopIteration as end:
            if encode_sorted(found) != encode_sorted(self.state.decode(text)):
                raise ConfigurationError(
                    f"{what} changes the state, which would be lost: take @reads away"
                ) from None
            return end.value
        finally:
            code.close()
        raise ConfigurationError(f"{what} waits: a read computes from the state alone")

    def new_run(self, key: str) -> NewRun:
        """Return the first run of a key. Raises InvalidInput for a key that cannot be one."""
        run: NewRun = self._prepared.run(Given(key), key=check_id("key", key))
        return msgspec.structs.replace(run, tags=(key,))  # continued runs have it, too

    @cached_property
    def _prepared(self) -> Any:
        return prepare(self, None, {}, frozenset())


def entity_of(cls: type[Any]) -> Entity:
    """Return the entity that a class is. Raises ConfigurationError if it is none."""
    entity = vars(cls).get(_ENTITY) if isinstance(cls, type) else None  # pyright: ignore[reportUnnecessaryIsInstance]
    if entity is None:
        raise ConfigurationError(
            f"{getattr(cls, '__name__', repr(cls))} is not an entity: it takes a class under "
            "@app.entity"
        )
    return cast("Entity", entity)


class Proxy:
    """An entity as its callers see it: its methods, without its state."""

    def __init__(self, entity: Entity, key: str, call: Callable[..., Awaitable[object]]) -> None:
        self._entity, self._key, self._call = entity, key, call
        entity.new_run(key)  # refuses what cannot be a key

    def __repr__(self) -> str:
        return f"<{self._entity.name} {self._key!r}>"

    def __getattr__(self, name: str) -> Callable[..., Awaitable[object]]:
        if name in self._entity.fields:
            raise AttributeError(f"{self!r} does not have its state here: read {name} by a method")
        try:
            method = self._entity.method(name)
        except InvalidInput as error:
            raise AttributeError(str(error)) from None
        return lambda *args, **kwargs: self._call(
            self._entity, self._key, method, method.encode(args, kwargs)
        )


class EntityDecorator(Protocol):
    """The decorator that `app.entity(…)` returns: it makes the class an entity."""

    def __call__(self, cls: type[E], /) -> type[E]: ...


class Entities:
    """The entities of an app."""

    registry: Registry

    @overload
    def entity(self, cls: type[E], /) -> type[E]: ...
    @overload
    def entity(
        self,
        /,
        *,
        name: str | None = None,
        queue: str = DEFAULT_QUEUE,
        retention: Duration | None = "30d",
    ) -> EntityDecorator: ...
    def entity(
        self,
        cls: type[Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str = DEFAULT_QUEUE,
        retention: Duration | None = "30d",
    ) -> object:
        """Make an entity of a dataclass: objects that live in the database, one for each key.

        The fields are its state, and all have defaults, except `key: str`. Its public methods are
        async. Those under `@reads` read; all others change the object, one after another. The name
        is by default that of the class. `retention` is how long a deleted entity is kept. Raises
        ConfigurationError for a class that cannot be one, and for a name that the app has already.

        ```python
        @app.entity
        @dataclass
        class Cart:
            key: str
            items: dict[str, int] = field(default_factory=dict)

            async def add(self, item: str, number: int = 1) -> int:
                self.items[item] = self.items.get(item, 0) + number
                return len(self.items)
        ```
        """

        def define(cls: type[Any]) -> type[Any]:
            if not isinstance(cls, type):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigurationError(f"@app.entity takes a class, not {cls!r}: give name=")
            if (known := vars(cls).get(_ENTITY)) is not None:
                raise ConfigurationError(f"{cls.__name__} is already the entity {known.full_name}")
            entity = Entity(cls, self.registry, name=name, queue=queue, retention=retention)
            self.registry.add_workflow(entity)
            setattr(cls, _ENTITY, entity)
            return cls

        return define if cls is None else define(cls)
