"""Compression of payloads, with zlib."""

from __future__ import annotations

import zlib
from typing import Final

from holdfast.codec import MAX_PAYLOAD
from holdfast.errors import ConfigurationError, PayloadError

_SMALL: Final = 1024  # bytes


class Zlib:
    """Compresses payloads of `min_bytes` and more, if that makes them smaller.

    `level` is that of zlib, from 1 (fast) to 9 (small).
    """

    name: str = "zlib/1"
    key_id: str | None = None

    def __init__(self, *, min_bytes: int = _SMALL, level: int = 6) -> None:
        """Raises ConfigurationError for values that zlib does not take."""
        if not 1 <= level <= 9 or min_bytes < 0:
            raise ConfigurationError(
                f"Zlib: level must be 1 to 9 and min_bytes not negative, not {level} and "
                f"{min_bytes}"
            )
        self._min_bytes, self._level = min_bytes, level

    def encode(self, data: bytes) -> bytes | None:
        """Return the compressed data, None if that saves too little."""
        if len(data) < self._min_bytes:
            return None
        compressed = zlib.compress(data, self._level)
        return compressed if len(compressed) < 0.7 * len(data) else None  # base64 takes a third

    def decode(self, data: bytes, key_id: str | None) -> bytes:
        """Return what was compressed. Raises PayloadError for anything else."""
        reader = zlib.decompressobj()
        try:
            text = reader.decompress(data, MAX_PAYLOAD)
        except zlib.error as error:
            raise PayloadError(f"the compressed data is damaged: {error}") from None
        if not reader.eof:
            raise PayloadError(
                f"the data is cut off, or expands to more than {MAX_PAYLOAD:,} bytes"
            )
        return text
