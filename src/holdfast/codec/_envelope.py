"""The envelope in which an encoded payload is stored: JSON that says how it was encoded.

`{"holdfast:codec":"zlib/1 aes-gcm/1:k1","data":"…"}` was compressed, and then encrypted with the
key k1. The data is base64.
"""

from __future__ import annotations

import re
from typing import Final

ENVELOPE: Final = '{"holdfast:codec":'
# The same without spaces. JSON text has it only for a field of this name: in a string its quotes
# would be escaped.
MARK: Final = '"holdfast:codec":'
MARK_BYTES: Final = MARK.encode()
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
    found = _stages.search(text if isinstance(text, str) else text.decode())
    stages = "" if found is None else found[1]
    keys = [key for _, _, key in (stage.partition(":") for stage in stages.split()) if key]
    return f"encrypted with key {', '.join(keys)}" if keys else f"encoded with {stages or '?'}"
