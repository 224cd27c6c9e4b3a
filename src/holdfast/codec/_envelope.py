"""The envelope in which an encoded payload is stored: JSON that says how it was encoded.

`{"holdfast:codec":"zlib/1 aes-gcm/1:k1","data":"…"}` was compressed, and then encrypted with the
key k1. The data is base64.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from holdfast.codec._references import describe_reference

ENVELOPE: Final = '{"holdfast:codec":'
# The same without spaces. JSON text has it only for a field of this name: in a string its quotes
# would be escaped.
MARK: Final = '"holdfast:codec":'
MARK_BYTES: Final = MARK.encode()
_reason = re.compile(r'"holdfast:reason":("(?:[^"\\]|\\.)*")')
_stages = re.compile(r'"holdfast:codec":"([^"]*)"')


def is_sealed(text: str | bytes) -> bool:
    """Return True if JSON text has an encoded payload in it."""
    return MARK in text if isinstance(text, str) else MARK_BYTES in text


def seal_label(text: str | bytes) -> str:
    """Say in words how the first encoded payload in JSON text was encoded.

    >>> seal_label('{"holdfast:codec":"zlib/1 aes-gcm/1:k1","data":""}')
    'encrypted with key k1'
    >>> seal_label('{"holdfast:codec":"zlib/1","data":""}')
    'encoded with zlib/1'
    """
    known = text if isinstance(text, str) else text.decode()
    found = _stages.search(known)
    if found is not None and found[1] == "object/1":
        return describe_reference(known) or "in an object store"
    stages = "" if found is None else found[1]
    keys = [key for _, _, key in (stage.partition(":") for stage in stages.split()) if key]
    return f"encrypted with key {', '.join(keys)}" if keys else f"encoded with {stages or '?'}"


def shown_words(words: str) -> str:
    """Return words for people, which may quote an encoded payload, or how they were encoded.

    >>> shown_words("no bank has it"), shown_words('{"holdfast:codec":"zlib/1","data":""}')
    ('no bank has it', '(encoded with zlib/1)')
    """
    return f"({seal_label(words)})" if words.startswith(ENVELOPE) else words


def with_reason(data: bytes, reason: str) -> bytes:
    """Return an envelope that says why it could not be opened.

    >>> with_reason(b'{"holdfast:codec":"a","data":""}', "the key is another one")
    b'{"holdfast:codec":"a","data":"","holdfast:reason":"the key is another one"}'
    """
    return data.rstrip()[:-1] + b',"holdfast:reason":' + msgspec.json.encode(reason) + b"}"


def locked_message(text: str | bytes) -> str:
    """Say why the first encoded payload in JSON text cannot be used, and the way out."""
    label = seal_label(text)
    known = text if isinstance(text, str) else text.decode()
    if '"holdfast:codec":"object/1"' not in known:
        if (reason := _reason.search(known)) is not None:
            return f"a value is {label}, and cannot be opened: {msgspec.json.decode(reason[1])}"
        return (
            f"a value is {label}, and this program cannot open it: give its App or its Client the "
            "payload_codec that has written the value"
        )
    if "cannot be read" in label:
        return f"a value is {label}"
    return (
        f"a value is {label}, and this program does not know of objects: give its App or its "
        "Client large_payloads"
    )
