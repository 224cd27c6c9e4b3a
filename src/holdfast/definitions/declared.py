"""Types that functions declare for their parameters and results, read from annotations."""

from __future__ import annotations

import contextlib
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from holdfast.codec import Decode, decoder, encode, is_model_type, lost_field
from holdfast.errors import ConfigurationError, InvalidInput, PayloadError

_PLAIN: Final[frozenset[type]] = frozenset({str, int, bool, float, type(None)})


class Declared:
    """The declared type of one parameter or result; without an annotation, plain JSON.

    Annotations are resolved at the definition where they can be, so that an unsupported type
    is refused there, and at first use where they name what is defined later.
    """

    def __init__(self, fn: Callable[..., object], name: str, place: str) -> None:
        """Read `fn`'s annotation `name`; `place` names it in messages."""
        self.place = place
        self._fn, self._name = fn, name
        self._decode: Decode | None = None
        self._annotation: object = Any
        self.plain: frozenset[type] = frozenset()  # exact types that a round trip leaves as is
        # A name may be defined later, or only for the type checker: see `_resolved`.
        with contextlib.suppress(NameError):
            self._resolve()

    def decode(self, text: str | bytes | msgspec.Raw) -> Any:
        """Decode JSON text into the declared type. Raises InvalidInput where it does not fit."""
        decode = self._decode or self._resolved()
        try:
            return decode(text)
        except InvalidInput as error:
            raise InvalidInput(f"{self.place}: {error}") from None

    def encode(self, value: object) -> str:
        """Encode a value that must fit the declared type.

        Raises InvalidInput where it would not come back as that type, PayloadError where it
        cannot be stored at all.
        """
        try:
            text = encode(value)
        except PayloadError as error:
            raise PayloadError(f"{self.place}: {error}") from None
        if type(value) not in self.plain:
            restored = self.decode(text)
            if is_model_type(type(value)) and (lost := lost_field(value, restored)):
                raise InvalidInput(
                    f"{self.place}: the {lost} of {type(value).__name__} would not come back as it "
                    "is: a field with exclude=True is not stored, and a union of models that look "
                    "alike needs a discriminator"
                )
        return text

    def _resolved(self) -> Decode:
        try:
            return self._resolve()
        except NameError as error:
            raise ConfigurationError(
                f"{self.place}: its type cannot be resolved ({error}); define or import "
                "it where the module can see it, not in a function or under TYPE_CHECKING"
            ) from None

    def _resolve(self) -> Decode:
        annotation = _evaluate(self._fn, self._name)
        try:
            self._decode = decode = decoder(annotation)
        except ConfigurationError as error:
            raise ConfigurationError(f"{self.place}: {error}") from None
        self.plain = _plain_types(annotation)
        self._annotation = Any if annotation is object else annotation
        return decode

    @property
    def annotation(self) -> object:
        """The declared type, resolved; Any where there is none."""
        if self._decode is None:
            self._resolved()
        return self._annotation


def _plain_types(annotation: object) -> frozenset[type]:
    if annotation is Any or annotation is object:
        return _PLAIN
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    members = typing.get_args(annotation) if is_union else (annotation,)
    if not _PLAIN.issuperset(members):
        return frozenset()
    return frozenset(kind for kind in _PLAIN if kind in members)


def _evaluate(fn: Callable[..., object], name: str) -> object:
    """Return one annotation of a function, evaluated; `Any` where there is none.

    One by one: an annotation that nobody needs may name what only a type checker imports.
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
    return hints[name]


def raw_annotations(fn: Callable[..., object]) -> Mapping[str, object]:
    """Return a function's annotations as they are written, names left unresolved."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(fn, format=annotationlib.Format.FORWARDREF)
    return getattr(fn, "__annotations__", {})


def _enclosing(fn: Callable[..., object]) -> dict[str, object]:
    """Return what a nested function sees of the functions around it."""
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
