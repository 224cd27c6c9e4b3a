"""Describe exceptions as values that can be recorded, and decode them."""

from __future__ import annotations

import concurrent.futures.thread
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, cast

import msgspec

from holdfast.codec._values import CODE_ERRORS, encode
from holdfast.errors import CallFailed, InvalidInput, RunFailed
from holdfast.types import ErrorInfo
from holdfast.types.classes import class_name

MAX_TEXT: Final = 8 * 1024
MAX_CAUSES: Final = 8
MAX_DATA: Final = 64 * 1024

# Frames that are not the user's: those of holdfast, and of the pool that runs plain functions.
_NOT_THEIRS = (str(Path(__file__).parents[1]) + "/", concurrent.futures.thread.__file__)
_COMMON = (object, BaseException, Exception)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ErrorInfo).decode
_read_data = msgspec.json.Decoder(dict[str, object]).decode


def describe(exc: BaseException) -> ErrorInfo:
    """Describe an exception: class, message, traceback of user code, and what caused it.

    The cause is `__cause__` or the `__context__` that was not suppressed; for a CallFailed or
    RunFailed the recorded error; for an exception group its first member. The data is that of an
    attribute `data`, if it is a mapping and can be stored.
    """
    return _describe(exc, MAX_CAUSES)


def summarize(exc: BaseException) -> str:
    """Return class and message of an exception in one text that can be stored."""
    return storable(f"{type(exc).__name__}: {_message(exc)}")[:1000]


def storable(text: str) -> str:
    """Drop NUL characters and escape lone surrogates: neither can be stored as text."""
    return text.replace("\0", "").encode(errors="backslashreplace").decode()


def text_of(value: object) -> str:
    """Return `str(value)` as text that can be stored; if that raises, a text that says so."""
    try:
        return storable(str(value))
    except CODE_ERRORS as error:
        return f"(no message: str() raised {type(error).__name__})"


def encode_error(info: ErrorInfo) -> str:
    """Encode a described exception as JSON text."""
    return _encode(info).decode()


def decode_error(text: str | bytes | msgspec.Raw) -> ErrorInfo:
    """Decode what `encode_error` wrote. Raises InvalidInput for anything else."""
    try:
        return _decode(text)
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"not a recorded error: {error}") from None


def _describe(exc: BaseException, depth: int) -> ErrorInfo:
    kind = type(exc)
    return ErrorInfo(
        kind=class_name(kind),
        message=_message(exc),
        traceback=_traceback(exc),
        bases=tuple(class_name(base) for base in kind.__mro__[1:] if base not in _COMMON),
        cause=_cause(exc, depth - 1) if depth > 1 else None,
        data=_data(exc),
    )


def _data(exc: BaseException) -> dict[str, object] | None:
    """Return the exception's attribute `data`; None if it cannot be stored."""
    try:
        found = getattr(exc, "data", None)
        if not isinstance(found, Mapping):
            return None
        return _read_data(encode(dict(cast("Mapping[str, object]", found)), MAX_DATA))
    except CODE_ERRORS:
        return None


def _cause(exc: BaseException, depth: int) -> ErrorInfo | None:
    if isinstance(exc, CallFailed | RunFailed):
        return exc.error
    try:
        cause = exc.__cause__
        if cause is None:
            cause = _first_member(exc)
        if cause is None and not exc.__suppress_context__:
            cause = exc.__context__
    except CODE_ERRORS:  # of the exception's own attributes
        return None
    return None if cause is None else _describe(cause, depth)


def _first_member(exc: BaseException) -> BaseException | None:
    if not isinstance(exc, BaseExceptionGroup):
        return None
    return cast("BaseExceptionGroup[BaseException]", exc).exceptions[0]


def _message(exc: BaseException) -> str:
    text = text_of(exc)
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + " …"


def _traceback(exc: BaseException) -> str:
    try:
        found = traceback.TracebackException.from_exception(exc)
        if isinstance(exc, CallFailed | RunFailed):
            found.__notes__ = None  # the recorded traceback, which is recorded again as the cause
        for part in _members(found):
            part.stack = traceback.StackSummary.from_list(
                [frame for frame in part.stack if not frame.filename.startswith(_NOT_THEIRS)]
            )
        text = "".join(found.format(chain=False))
    except CODE_ERRORS as error:
        return f"(no traceback: formatting raised {type(error).__name__})"
    if len(text) > MAX_TEXT:
        text = f"{text[: MAX_TEXT // 4]}\n  …\n{text[-MAX_TEXT * 3 // 4 :]}"
    return storable(text)


def _members(found: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    yield found
    for member in found.exceptions or ():
        yield from _members(member)
