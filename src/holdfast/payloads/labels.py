"""For readers without keys: what is compressed is opened, what is encrypted says so."""

from __future__ import annotations

import re
from typing import Final

from holdfast.codec import is_sealed, seal_label
from holdfast.payloads.compression import Zlib
from holdfast.payloads.encoding import Payloads
from holdfast.payloads.large import LargePayloads, large_payloads_of

_label: Final = re.compile(
    r'"\((encrypted with key|encoded with|in an object store|[0-9.]+ \w+ in) ?.*\)"', re.DOTALL
)


def is_unread(text: str) -> bool:
    """Return True for what stands in the place of a value that could not be opened.

    >>> is_unread('"(encrypted with key k1)"'), is_unread('"(a remark)"')
    (True, False)
    """
    return is_sealed(text) or _label.fullmatch(text) is not None


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
