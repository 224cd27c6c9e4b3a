"""Arguments of steps as JSON text and back."""

from __future__ import annotations

import inspect
import math
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from holdfast.codec import Decode, decoder, encode_sorted
from holdfast.definitions.declared import Declared
from holdfast.errors import ConfigurationError, InvalidInput, PayloadError

Arguments: TypeAlias = tuple[tuple[object, ...], Mapping[str, object]]

_NO_KEYWORDS: Mapping[str, object] = types.MappingProxyType({})
NO_ARGUMENTS: Final[Arguments] = ((), _NO_KEYWORDS)

_split_positional = msgspec.json.Decoder(list[msgspec.Raw]).decode

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class _Mixed(msgspec.Struct):
    a: list[msgspec.Raw]
    k: dict[str, msgspec.Raw]


_split_mixed = msgspec.json.Decoder(_Mixed).decode


class Signature:
    """Encodes and decodes the arguments of one function.

    The text is a JSON array of the positional arguments, or `{"a": […], "k": {…}}` where some
    can only be given by keyword. How the caller wrote them does not matter: `f(1)` and
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
            if parameter.kind in _POSITIONAL:
                self._positional.append(declared)

    def encode(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
        """Encode arguments.

        Raises TypeError where the function does not take them, and PayloadError where they
        cannot be stored.
        """
        if kwargs or not self._least <= len(args) <= self._most:
            args, kwargs = self._bind(args, kwargs)
        try:
            return encode_sorted({"a": args, "k": kwargs} if kwargs else args)
        except PayloadError as error:
            raise PayloadError(f"arguments of {self._name}: {error}") from error

    def decode(self, text: str) -> Arguments:
        """Decode what `encode` wrote, into the declared types. Raises InvalidInput."""
        if text.startswith("["):
            try:
                return self._decode_full(text), _NO_KEYWORDS
            except InvalidInput:
                pass  # fewer than all of them, or one does not fit: look at each
            positional, named = _split_positional(text), {}
        else:
            mixed = _split_mixed(text)
            positional, named = mixed.a, mixed.k
        args = [self._at(index).decode(raw) for index, raw in enumerate(positional)]
        return tuple(args), {key: self._named(key).decode(raw) for key, raw in named.items()}

    def _decode_full(self, text: str) -> tuple[Any, ...]:
        """Decode all positional parameters in one go. Raises InvalidInput where they differ."""
        if self._full is None:
            kinds = tuple(declared.annotation for declared in self._positional)
            self._full = decoder(types.GenericAlias(tuple, kinds or ((),)))
        found: tuple[Any, ...] = self._full(text)
        return found

    def _bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Arguments:
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._name}: {error}") from None
        return bound.args, bound.kwargs

    def _at(self, index: int) -> Declared:
        if index < len(self._positional):
            return self._positional[index]
        if self._rest is None:
            raise InvalidInput(f"{self._name} takes {len(self._positional)} arguments, not more")
        return self._rest

    def _named(self, name: str) -> Declared:
        declared = self._by_name.get(name, self._extra)
        if declared is None:
            raise InvalidInput(f"{self._name} takes no argument {name!r}")
        return declared


def read_signature(fn: Callable[..., object]) -> inspect.Signature:
    """Return a callable's signature. Raises ConfigurationError where it has none to read."""
    try:
        if sys.version_info >= (3, 14):
            import annotationlib

            return inspect.signature(fn, annotation_format=annotationlib.Format.FORWARDREF)
        return inspect.signature(fn)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{fn!r} cannot be called durably: {error}") from None


def _positional_range(parameters: list[inspect.Parameter]) -> tuple[float, float]:
    """Return how many arguments, all positional, are certain to fit: (least, most)."""
    required = [p for p in parameters if p.default is p.empty]
    if any(p.kind is p.KEYWORD_ONLY for p in required):
        return math.inf, -math.inf
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    least = sum(p.kind in _POSITIONAL for p in required)
    most = math.inf if variadic else sum(p.kind in _POSITIONAL for p in parameters)
    return least, most
