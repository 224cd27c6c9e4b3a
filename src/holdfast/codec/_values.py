"""Values to JSON text and back into the types that the code declares.

What JSON or PostgreSQL cannot hold is refused, with its place inside the value.
"""

from __future__ import annotations

import dataclasses
import json
import re
import zlib
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, Never, NoReturn, TypeAlias, cast

import msgspec
from msgspec import inspect as types

from holdfast.codec._aliases import without_aliases
from holdfast.codec._envelope import MARK, MARK_BYTES, locked_message
from holdfast.codec._models import (
    MASK,
    adapted,
    dump,
    dump_unmasked,
    is_model,
    is_model_type,
    is_text_type,
    load,
    not_data,
)
from holdfast.errors import ConfigurationError, InvalidInput, PayloadError, PayloadLocked

Decode: TypeAlias = Callable[[str | bytes | msgspec.Raw], Any]

_USE_DATA: Final = ": use a dataclass, a msgspec struct, a TypedDict or a pydantic model"
_TELL_APART: Final = (
    ": JSON could not tell them apart. Use msgspec structs with tag=True, or pydantic models with "
    "a field such as kind: Literal['card']"
)
MAX_PAYLOAD: Final = 16 * 1024 * 1024
MAX_DEPTH: Final = 256  # levels of nesting of a value that is stored
# What is read may have more: a value, and what the store and callers put around it. Interpreters
# differ in how deep they get, and all get through this.
_READ_DEPTH: Final = 300
SHALLOW: Final = 2 * _READ_DEPTH  # bytes that have no room for more levels
_BRIEF: Final = len(MARK)  # bytes of JSON that have no room for an encoded payload
_FLAT: Final = 2 * MAX_DEPTH  # bytes that have no room for more levels than a value may have

_encode = msgspec.json.Encoder(enc_hook=dump).encode
_encode_unmasked = msgspec.json.Encoder(enc_hook=dump_unmasked).encode
_encode_sorted = msgspec.json.Encoder(enc_hook=dump, order="deterministic").encode
_encode_finite = json.JSONEncoder(allow_nan=False, check_circular=False).encode

# An escaped NUL, and not a backslash that is followed by the text "u0000".
_nul = re.compile(rb"(?<!\\)((?:\\\\)*)\\u0000")
# Escapes; the group is half of a surrogate pair without the other half.
_surrogates = re.compile(
    rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
_string = re.compile(rb'"(?:[^"\\]|\\.)*"')
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
# What the code of types, exceptions and codecs may raise: no reason to end what called it.
# A cancel comes where code waits, which theirs does not; a key that was pressed interrupts.
CODE_ERRORS: Final = (Exception, SystemExit, CancelledError)
_UNTYPED: Final = (Any, object, Never, NoReturn)


def raw(text: str | None) -> msgspec.Raw | None:
    """Return JSON text so that it is written as JSON, not as a string; None for none."""
    return None if text is None else msgspec.Raw(text.encode())


def encode(value: object, limit: int = MAX_PAYLOAD) -> str:
    """Encode a value as compact JSON text, with keys in their own order.

    Dataclasses, msgspec structs, TypedDicts, named tuples, enums, datetimes (aware or naive, both
    as they are), dates, times, timedeltas, UUIDs, Decimals, bytes, sets and pydantic models are
    taken besides plain JSON values. Raises PayloadError, naming the place inside the value, for NaN
    and infinities, NUL characters, lone surrogates, unsupported types and more than `limit` bytes.
    """
    if value is None:
        return "null"
    try:
        data = _encode(value)
    except Exception as error:
        raise _unsupported(value, error) from error
    return _checked(value, data, limit)


def encode_sorted(value: object, limit: int = MAX_PAYLOAD) -> str:
    """Encode as `encode` does, with keys and sets sorted: equal values give equal text."""
    try:
        data = _encode_sorted(value)
    except TypeError:
        data = _encode_with_odd_keys(value)
    except Exception as error:
        raise _unsupported(value, error) from error
    return _checked(value, data, limit)


def fingerprint(encoded: str) -> int:
    """Return 32 bits that change when encoded arguments change."""
    return zlib.crc32(encoded.encode())


def depth(data: bytes) -> int:
    """Return how deeply JSON text is nested: 0 for a scalar; at most too much up to MAX_DEPTH.

    It stops to count where nobody reads any more. Matching brackets inside texts count as well:
    leaving them out would be much slower. Only texts with many brackets that do not match can
    hide a level.
    """
    openers = data.count(b"[") + data.count(b"{")
    if openers <= MAX_DEPTH:
        return openers
    levels = _levels(data)
    return levels if levels is not None else _levels(_string.sub(b"", data)) or 0


def check_depth(text: str | bytes | msgspec.Raw) -> None:
    """Raise InvalidInput for JSON text that is nested too deeply to be read."""
    if len(text) <= SHALLOW:
        return
    data = text.encode() if isinstance(text, str) else bytes(text)
    if depth(data) > _READ_DEPTH:
        raise InvalidInput(
            f"the JSON is nested too deeply to be read: a value has {MAX_DEPTH} levels at most"
        )


def _levels(data: bytes) -> int | None:
    """Count how often the innermost brackets can be removed; None if some do not match."""
    brackets, levels = data.translate(None, _NO_BRACKETS), 0
    while brackets and levels <= _READ_DEPTH:
        outer = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if len(outer) == len(brackets):
            return None
        brackets, levels = outer, levels + 1
    return levels


def has_nul(data: bytes) -> bool:
    """Return True if JSON text has an escaped NUL character, which PostgreSQL cannot hold."""
    return b"\\u0000" in data and _nul.search(data) is not None


def without_nul(payload: msgspec.Raw) -> msgspec.Raw:
    """Return JSON text with U+FFFD in the place of each escaped NUL character."""
    data = bytes(payload)
    if not has_nul(data):
        return payload
    return msgspec.Raw(_nul.sub(rb"\1\\ufffd", data))


def why_not_json(data: bytes, error: Exception) -> str:
    """Return why a text could not be read as JSON: the error's words, or its lone surrogate."""
    for found in _surrogates.finditer(data):
        if found[1] is not None:
            escape = f"\\{found[1].decode()}"
            return f"{escape} (byte {found.start()}) is a lone surrogate, which UTF-8 cannot hold"
    return str(error)


def _encode_with_odd_keys(value: object) -> bytes:
    """Sort where keys are numbers or UUIDs, which the encoder sorts only as strings."""
    try:
        plain = msgspec.to_builtins(
            value, str_keys=True, order="deterministic", enc_hook=_dump_plain
        )
        return _encode_sorted(plain)
    except Exception as error:
        raise _unsupported(value, error) from error


def _dump_plain(value: object) -> object:
    return msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else dump(value)


def _checked(value: object, data: bytes, limit: int) -> str:
    # Texts, as `in` takes bytes for a number first: each look would cost 2,000 instructions.
    text = data.decode()
    # The encoder writes NaN as null, NUL as an escape, secrets as masks: the costly looks are rare.
    if MASK in text:
        _check_masks(value)
    if "null" in text and not _is_finite(value):
        place = _locate(value, lambda part: not _is_finite(part))
        raise PayloadError(f"{place}: JSON has no NaN and no infinities; store None or a string")
    if "\\u0000" in text and has_nul(data):
        place = _locate(value, lambda part: _nul.search(_encode(part)) is not None)
        raise PayloadError(f"{place}: PostgreSQL stores no NUL characters in text; store bytes")
    size = len(data)
    if size > _FLAT and depth(data) > MAX_DEPTH:
        raise PayloadError(f"the value is nested more than {MAX_DEPTH} levels deep")
    if size > limit:
        raise PayloadError(
            f"the value takes {size:,} bytes of JSON, more than the limit of {limit:,}: "
            "store it elsewhere and pass a reference"
        )
    return text


def _check_masks(value: object) -> None:
    try:
        msgspec.to_builtins(value, enc_hook=_dump_unmasked)
    except Exception as error:
        raise _unsupported(value, error) from error


def _dump_unmasked(value: object) -> object:
    return None if isinstance(value, msgspec.Raw) else dump_unmasked(value)


def _is_finite(value: object) -> bool:
    try:
        _encode_finite(msgspec.to_builtins(value, enc_hook=_dump_finite))
    except ValueError:
        return False
    except RecursionError as error:
        raise _unsupported(value, error) from error
    return True


def _dump_finite(value: object) -> object:
    # JSON text, which has neither.
    return None if isinstance(value, msgspec.Raw) else dump(value)


def _is_unsupported(value: object) -> bool:
    try:
        _encode_unmasked(value)
    except Exception:
        return True
    return False


def _unsupported(value: object, error: Exception) -> PayloadError:
    if isinstance(error, RecursionError):
        return PayloadError("the value contains itself, or is nested too deeply")
    if isinstance(error, UnicodeEncodeError):
        error = ValueError("the text has a lone surrogate, which UTF-8 cannot hold")
    return PayloadError(f"{_locate(value, _is_unsupported)}: {error}")


def _locate(value: object, is_bad: Callable[[object], bool]) -> str:
    """Name the innermost part of a bad value that is bad, as a path from `$`, or the value."""
    path = "$"
    while True:
        for name, part in _parts(value):
            if is_bad(part):
                path, value = path + name, part
                break
        else:
            return "the value" if path == "$" else path


def _parts(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, part in cast("Mapping[object, object]", value).items():
            yield f".{key}", part
    elif isinstance(value, list | tuple | set | frozenset):
        for index, part in enumerate(cast("list[object]", value)):
            yield f"[{index}]", part
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield f".{name}", getattr(value, name)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield f".{field.name}", getattr(value, field.name)
    elif is_model(value):
        yield from ((f".{name}", part) for name, part in vars(value).items())


def decoder(annotation: object) -> Decode:
    """Return the function that decodes JSON text into `annotation`'s type.

    `Any` and `object` give plain JSON values. The function raises InvalidInput with the place
    of what does not fit. Raises ConfigurationError for a type that JSON cannot be turned into,
    and NameError for one whose fields name a type that is not defined yet.
    """
    try:
        return _cached(annotation)
    except TypeError:  # unhashable metadata in Annotated
        return _build(annotation)


@lru_cache(maxsize=1024)
def _cached(annotation: object) -> Decode:
    return _build(annotation)


def _build(annotation: object) -> Decode:
    declared = without_aliases(annotation)
    decode_json = _reader(Any if any(declared is untyped for untyped in _UNTYPED) else declared)

    def decode(text: str | bytes | msgspec.Raw) -> object:
        if len(text) > _BRIEF:
            # As check_open() does, but without a call: a replay comes here for each step.
            if (MARK in text) if isinstance(text, str) else bytes(text).find(MARK_BYTES) >= 0:
                check_open((text,))
            if len(text) > SHALLOW:
                check_depth(text)
        try:
            return decode_json(text)
        except (ValueError, RecursionError) as error:  # those of msgspec and pydantic are, too
            raise InvalidInput(str(error)) from None
        except CODE_ERRORS as error:  # of the type's own code: the value does not fit it
            raise InvalidInput(f"{type(error).__name__}: {error}") from error

    return decode


def _reader(annotation: object) -> Decode:
    """Return msgspec's decoder; for types with models that it cannot take, pydantic's."""
    try:
        _check(annotation)
    except ConfigurationError:
        validate = adapted(annotation)
        if validate is None:
            raise
        return lambda text: validate(text.encode() if isinstance(text, str) else bytes(text))
    return msgspec.json.Decoder[object](annotation, dec_hook=load).decode


def _check(annotation: object) -> None:
    try:
        described = types.type_info(annotation)
    except TypeError as error:
        way_out = _TELL_APART if str(error).startswith("Type unions may not contain") else ""
        raise ConfigurationError(f"{error}{way_out}") from None
    except RecursionError:
        raise ConfigurationError(
            f"{annotation} is, or has in it, a type alias that contains itself: use Any for all "
            "JSON, or a dataclass, struct or model, which may contain itself"
        ) from None
    for part in _walk(described, set()):
        if isinstance(part, types.CustomType) and not _is_known(part.cls):
            raise ConfigurationError(
                f"{part.cls.__module__}.{part.cls.__qualname__} cannot be restored from JSON"
                + (not_data(part.cls) or _USE_DATA)
            )


def _is_known(kind: type) -> bool:
    return kind is object or is_model_type(kind) or is_text_type(kind)


def _walk(described: object, seen: set[int]) -> Iterator[object]:
    """Yield a type's description and those of all types inside it, each once."""
    if id(described) in seen:
        return
    seen.add(id(described))
    if isinstance(described, tuple):
        for part in cast("tuple[object, ...]", described):
            yield from _walk(part, seen)
    elif isinstance(described, types.Type | types.Field):
        yield described
        for name in described.__struct_fields__:
            yield from _walk(getattr(described, name), seen)


def check_open(texts: Iterable[str | bytes | msgspec.Raw | None]) -> None:
    """Raise PayloadLocked for JSON text that has an encoded payload in it."""
    for text in texts:
        if isinstance(text, str):
            if MARK in text:
                raise PayloadLocked(locked_message(text))
        elif text is not None and MARK_BYTES in (known := bytes(text)):
            raise PayloadLocked(locked_message(known))
