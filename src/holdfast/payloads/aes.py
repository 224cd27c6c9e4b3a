"""Encryption of payloads with AES-GCM, by the package `cryptography`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from holdfast.errors import ConfigurationError, PayloadError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE: Final = 12  # bytes, of its own for each payload
_key_id = re.compile(r"[A-Za-z0-9._-]{1,64}")


class AesGcm:
    """Encrypts and authenticates payloads. The first of `keys` encrypts, all of them decrypt.

    Keys are 16, 24 or 32 random bytes, by an id of letters, digits and `._-` that is stored with
    each payload. To change the key, put a new one first, and keep the old ones for as long as
    there are runs from before. `AesGcm.new_key()` makes one.

    Needs the extra `holdfast[encryption]`.
    """

    name: str = "aes-gcm/1"

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        """Raises ConfigurationError without keys, and for keys and ids that cannot be used."""
        if not keys:
            raise ConfigurationError("AesGcm needs a key: AesGcm({'k1': AesGcm.new_key()})")
        self._ciphers = {key_id: _cipher(key_id, key) for key_id, key in keys.items()}
        self.key_id: str | None = next(iter(keys))

    @staticmethod
    def new_key() -> bytes:
        """Return 32 random bytes."""
        return os.urandom(32)

    def encode(self, data: bytes) -> bytes:
        """Return the encrypted data, with its nonce before it."""
        assert self.key_id is not None
        nonce = os.urandom(_NONCE)
        return nonce + self._ciphers[self.key_id].encrypt(nonce, data, _bound(self.key_id))

    def decode(self, data: bytes, key_id: str | None) -> bytes:
        """Return what was encrypted. Raises PayloadError without the key, and for other data."""
        from cryptography.exceptions import InvalidTag

        cipher = self._ciphers.get(key_id or "")
        if cipher is None or key_id is None:
            known = ", ".join(self._ciphers)
            raise PayloadError(
                f"this program has no key {key_id}, only {known}: give its AesGcm that key, too"
            )
        try:
            return cipher.decrypt(data[:_NONCE], data[_NONCE:], _bound(key_id))
        except (InvalidTag, ValueError):
            raise PayloadError(
                f"the key that this program has as {key_id} does not fit: the value was encrypted "
                "with another key of this id, or was changed since"
            ) from None


def _cipher(key_id: str, key: bytes) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise ConfigurationError(
            "AesGcm needs the package cryptography: pip install 'holdfast[encryption]'"
        ) from None
    if not _key_id.fullmatch(key_id):
        raise ConfigurationError(
            f"AesGcm: {key_id!r} cannot be the id of a key: use letters, digits and ._-, 64 at most"
        )
    try:
        return AESGCM(key)
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"AesGcm: key {key_id} must be 16, 24 or 32 bytes; AesGcm.new_key() makes one"
        ) from None


def _bound(key_id: str) -> bytes:
    """Return what is authenticated with the data."""
    return f"aes-gcm/1:{key_id}".encode()
