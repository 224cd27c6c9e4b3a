"""The types that functions declare, and encoding of arguments and results by them."""

from __future__ import annotations

import contextlib
import inspect
import math
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from holdfast.codec import (
    Decode,
    decoder,
    encode,
    encode_sorted,
    is_model_type,
    lost_field,
    without_aliases,
)
from holdfast.errors import ConfigurationError, InvalidInput, PayloadError

Arguments: TypeAlias = tuple[tuple[object, ...], Mapping[str, object]]

_CONTEXTS: Final = ("ctx", "context")
_NO_KEYWORDS: Mapping[str, object] = types.MappingProxyType({})
NO_ARGUMENTS: Final[Arguments] = ((), _NO_KEYWORDS)

_split_positional = msgspec.json.Decoder(list[msgspec.Raw]).decode

POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class _Mixed(msgspec.Struct):
    a: list[msgspec.Raw]
    k: dict[str, msgspec.Raw]


_split_mixed = msgspec.json.Decoder(_Mixed).decode
_PLAIN: Final[frozenset[type]] = frozenset({str, int, bool, float, type(None)})


class Declared:
    """The declared type of one parameter or result; without an annotation, plain JSON.

    Annotations are resolved at the definition, so that an unsupported type is refused there. One
    that names something defined later is resolved at its first use.
    """

    def __init__(self, fn: Callable[..., object], name: str, place: str) -> None:
        """Read `fn`'s annotation `name`; `place` names it in messages."""
        self.place = place
        self._fn, self._name = fn, name
        self._decode: Decode | None = None
        self._annotation: object = Any
        # Types with values that encoding and decoding leave unchanged.
        self.plain: frozenset[type] = frozenset()
        # A name may be defined later, or only for the type checker: see `_resolved`.
        with contextlib.suppress(NameError):
            self._resolve()

    @classmethod
    def of_type(cls, annotation: object, place: str) -> Declared:
        """Return a declared type that is not a function's. `place` names it in messages."""

        def holder() -> None: ...

        holder.__annotations__ = {"value": annotation}
        return cls(holder, "value", place)

    def decode(self, text: str | bytes | msgspec.Raw) -> Any:
        """Decode JSON text into the declared type. Raises InvalidInput if it does not fit.

        Nothing fits a type that cannot be resolved.
        """
        decode = self._decode
        if decode is None:
            try:
                decode = self._resolved()
            except Exception as error:
                raise InvalidInput(str(error)) from error
        try:
            return decode(text)
        except InvalidInput as error:
            raise self._misfit(error) from error.__cause__

    def fits(self, text: str | bytes | msgspec.Raw) -> bool:
        """Return True if JSON text can be decoded into the declared type."""
        try:
            self.decode(text)
        except Exception:
            return False
        return True

    def _restore(self, text: str | bytes | msgspec.Raw) -> Any:
        decode = self._decode or self._resolved()
        try:
            return decode(text)
        except InvalidInput as error:
            raise self._misfit(error) from error.__cause__

    def _misfit(self, error: InvalidInput) -> InvalidInput:
        """Return an error with the place, and with the class that msgspec calls an object."""
        text, kind = str(error), self._annotation
        if isinstance(kind, type) and kind is not dict and " - at " not in text:
            text = text.replace("Expected `object`", f"Expected `object` ({kind.__name__})")
        return InvalidInput(f"{self.place}: {text}")

    def encode(self, value: object) -> str:
        """Encode a value that must fit the declared type.

        Raises InvalidInput if it would not come back as that type, PayloadError if it cannot be
        stored at all.
        """
        return self.encode_and_restore(value)[0]

    def encode_and_restore(self, value: object) -> tuple[str, object]:
        """Encode a value as `encode` does; return the text, and what it is decoded into."""
        try:
            text = encode(value)
        except PayloadError as error:
            raise PayloadError(f"{self.place}: {error}") from None
        if type(value) in self.plain:
            return text, value
        restored = self._restore(text)
        if is_model_type(type(value)) and (lost := lost_field(value, restored)):
            raise InvalidInput(
                f"{self.place}: the {lost} of {type(value).__name__} would not come back as it "
                "is: a field with exclude=True is not stored, and a union of models that look "
                "alike needs a discriminator"
            )
        return text, restored

    def _resolved(self) -> Decode:
        try:
            return self._resolve()
        except NameError as error:
            raise ConfigurationError(
                f"{self.place}: its type cannot be resolved ({error}); define or import "
                "it at the top of the module, not in a function or under TYPE_CHECKING"
            ) from None

    def _resolve(self) -> Decode:
        annotation = evaluate(self._fn, self._name)
        try:
            self._decode = decode = decoder(annotation)
        except ConfigurationError as error:
            raise ConfigurationError(f"{self.place}: {error}") from None
        self.plain = _plain_types(annotation)
        self._annotation = Any if annotation is object else annotation
        return decode

    @property
    def annotation(self) -> object:
        """The declared type, resolved; Any without an annotation."""
        if self._decode is None:
            self._resolved()
        return self._annotation


class Signature:
    """Encodes and decodes the arguments of one function.

    The text is a JSON array of the positional arguments, or `{"a": […], "k": {…}}` if some can
    only be given by keyword. How the caller wrote them does not matter: `f(1)` and
    `f(x=1)` give the same text, and keys and sets are sorted.
    """

    def __init__(self, fn: Callable[..., object], name: str, *, bound: bool = False) -> None:
        """Read `fn`'s parameters; with `bound`, without the first one, the method's instance."""
        self._name = name
        signature = read_signature(fn)
        parameters = list(signature.parameters.values())[1 if bound else 0 :]
        self._signature = signature.replace(parameters=parameters)
        self._positional: list[Declared] = []
        self._by_name: dict[str, Declared] = {}
        self._rest: Declared | None = None  # *args
        self._extra: Declared | None = None  # **kwargs
        for parameter in parameters:
            self._add(parameter, Declared(fn, parameter.name, f"{name}({parameter.name})"))
        self._full: Decode | None = None
        self._least, self._most = _positional_range(parameters)

    def _add(self, parameter: inspect.Parameter, declared: Declared) -> None:
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            self._rest = declared
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            self._extra = declared
        else:
            self._by_name[parameter.name] = declared
            if parameter.kind in POSITIONAL:
                self._positional.append(declared)

    def encode(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
        """Encode arguments.

        Raises TypeError for arguments that the function does not take, PayloadError for ones that
        cannot be stored.
        """
        if kwargs or not self._least <= len(args) <= self._most:
            bound = self._bind(args, kwargs)
            args, kwargs = bound.args, bound.kwargs
        try:
            return encode_sorted({"a": args, "k": kwargs} if kwargs else args)
        except PayloadError as error:
            raise PayloadError(f"arguments of {self._name}: {error}") from error

    def decode(self, text: str) -> Arguments:
        """Decode what `encode` wrote, into the declared types. Raises InvalidInput."""
        if text.startswith("["):
            try:
                full = (self._full or self._read_full())(text)
            except (InvalidInput, ConfigurationError):
                pass  # some arguments are missing, or one does not fit: decode each
            else:
                if self._least <= len(full):
                    return full, _NO_KEYWORDS
            positional, named = _split_positional(text), {}
        else:
            mixed = _split_mixed(text)
            positional, named = mixed.a, mixed.k
        args = tuple(self._at(index).decode(raw) for index, raw in enumerate(positional))
        kwargs = {key: self._named(key).decode(raw) for key, raw in named.items()}
        if kwargs or not self._least <= len(args):
            try:
                self._bind(args, kwargs)  # a parameter may have been added, or become another kind
            except TypeError as error:
                raise InvalidInput(str(error)) from None
        return args, kwargs

    def _read_full(self) -> Decode:
        """Return what decodes all positional parameters at once."""
        kinds = tuple(declared.annotation for declared in self._positional)
        self._full = full = decoder(types.GenericAlias(tuple, kinds or ((),)))
        return full

    @property
    def parameters(self) -> list[inspect.Parameter]:
        """The function's parameters, in their order."""
        return list(self._signature.parameters.values())

    def annotation(self, name: str) -> object:
        """Return the declared type of a parameter with a name, Any without one."""
        return self._by_name[name].annotation

    def paths_to(self, name: str) -> list[str]:
        """Return the paths to a parameter in what `encode` writes. Raises KeyError."""
        kinds = {each.name: each.kind for each in self.parameters if each.name in self._by_name}
        if kinds[name] is inspect.Parameter.KEYWORD_ONLY:
            return [f"k.{name}"]
        place = list(kinds).index(name)
        return [f"k.{name}", f"a.{place}", f"{place}"]

    def by_name(
        self, args: tuple[object, ...], kwargs: Mapping[str, object] = _NO_KEYWORDS
    ) -> dict[str, object]:
        """Return arguments by the names of their parameters. Raises TypeError as `encode` does."""
        return self._bind(args, kwargs).arguments

    def bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Arguments:
        """Return arguments as `encode` writes them. Raises TypeError as it does."""
        bound = self._bind(args, kwargs)
        return bound.args, bound.kwargs

    def _bind(
        self, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> inspect.BoundArguments:
        try:
            return self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._name}: {error}{self._about_context()}") from None

    def _about_context(self) -> str:
        """Return what to do about a first parameter that looks like a workflow's context."""
        first = next(iter(self._signature.parameters.values()), None)
        if first is None or first.name not in _CONTEXTS or first.annotation is not first.empty:
            return ""
        return (
            f"; only workflows are given a context: leave {first.name} out, and use current_step() "
            "or current_activity() in the code"
        )

    def _at(self, index: int) -> Declared:
        if index < len(self._positional):
            return self._positional[index]
        if self._rest is None:
            raise InvalidInput(f"{self._name} takes {len(self._positional)} arguments at most")
        return self._rest

    def _named(self, name: str) -> Declared:
        declared = self._by_name.get(name, self._extra)
        if declared is None:
            raise InvalidInput(f"{self._name} has no argument {name!r}")
        return declared


def refuse_method(fn: Callable[..., object], kind: str) -> None:
    """Raise ConfigurationError if `@staticmethod` or `@classmethod` has made this of a function."""
    if (decorator := type(fn)) in (staticmethod, classmethod):
        raise ConfigurationError(
            f"{kind} {fn.__name__}: write @{decorator.__name__} above its other decorator, not "
            "below it"
        )


def refuse_awaitable(returned: object, of: str) -> None:
    """Raise ConfigurationError if what a plain function returned would have to be awaited."""
    if inspect.isawaitable(returned):
        if inspect.iscoroutine(returned):
            returned.close()  # else Python warns as well that it was never awaited
        raise ConfigurationError(f"{of}: it is async, and must be a plain function: write def")


def read_signature(fn: Callable[..., object]) -> inspect.Signature:
    """Return a callable's signature. Raises ConfigurationError if it has none."""
    try:
        if sys.version_info >= (3, 14):
            import annotationlib

            return inspect.signature(fn, annotation_format=annotationlib.Format.FORWARDREF)
        return inspect.signature(fn)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{fn!r} cannot be called durably: {error}") from None


def _positional_range(parameters: list[inspect.Parameter]) -> tuple[float, float]:
    """Return the least and the highest number of positional arguments that fit in any case."""
    required = [p for p in parameters if p.default is p.empty]
    if any(p.kind is p.KEYWORD_ONLY for p in required):
        return math.inf, -math.inf
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    least = sum(p.kind in POSITIONAL for p in required)
    most = math.inf if variadic else sum(p.kind in POSITIONAL for p in parameters)
    return least, most


def _plain_types(annotation: object) -> frozenset[type]:
    if annotation is Any or annotation is object:
        return _PLAIN
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    members = typing.get_args(annotation) if is_union else (annotation,)
    if not _PLAIN.issuperset(members):
        return frozenset()
    return frozenset(kind for kind in _PLAIN if kind in members)


def evaluate(fn: Callable[..., object], name: str) -> object:
    """Return one annotation of a function, evaluated; `Any` without one. Raises NameError.

    The others are left alone: they may name what only a type checker imports.
    """
    plain = inspect.unwrap(fn)
    annotations = raw_annotations(plain)
    if name not in annotations:
        return Any
    holder = types.SimpleNamespace(__annotations__={name: annotations[name]})
    hints = typing.get_type_hints(
        holder,
        globalns=getattr(plain, "__globals__", {}),
        localns=_enclosing(plain),
        include_extras=True,
    )
    return without_aliases(hints[name])


def raw_annotations(fn: Callable[..., object]) -> Mapping[str, object]:
    """Return a function's annotations as they are written, with names unresolved."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(fn, format=annotationlib.Format.FORWARDREF)
    return getattr(fn, "__annotations__", {})


def _enclosing(fn: Callable[..., object]) -> dict[str, object]:
    """Return the variables of the functions around a nested function that it uses."""
    code: types.CodeType | None = getattr(fn, "__code__", None)
    cells: tuple[types.CellType, ...] = getattr(fn, "__closure__", None) or ()
    names = code.co_freevars if code else ()
    parameters = {parameter.__name__: parameter for parameter in getattr(fn, "__type_params__", ())}
    return parameters | {
        name: cell.cell_contents for name, cell in zip(names, cells, strict=True) if _is_set(cell)
    }


def _is_set(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True
