"""For readers without keys: what is compressed is opened, what is encrypted says so."""

from __future__ import annotations

from typing import Final

from holdfast.codec import is_sealed, seal_label
from holdfast.payloads.compression import Zlib
from holdfast.payloads.encoding import Payloads
from holdfast.payloads.large import LargePayloads, large_payloads_of


class _Readable(Payloads):
    """Encodes nothing."""

    def __init__(self, large: LargePayloads | None = None) -> None:
        super().__init__(Zlib(), large=large)
        self.hides, self.seals = False, large is not None

    def _seal(self, text: str) -> str:
        return text

    def _unseal(self, data: bytes) -> bytes:
        opened = super()._unseal(data)
        return f'"({seal_label(opened)})"'.encode() if is_sealed(opened) else opened


READABLE: Final = _Readable()


def readable() -> Payloads:
    """Return `READABLE`; with $HOLDFAST_LARGE_PAYLOADS, objects are read and written, too."""
    large = large_payloads_of(None)
    return READABLE if large is None else _Readable(large)
