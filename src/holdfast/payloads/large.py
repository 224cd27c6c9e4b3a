"""The option `large_payloads`: where payloads above a size are kept, instead of the database."""

from __future__ import annotations

import os
import re
from typing import Final

from holdfast.errors import ConfigurationError
from holdfast.objects import check_objects_url

LARGE_PAYLOADS_VARIABLE: Final = "HOLDFAST_LARGE_PAYLOADS"
_UNITS: Final = {"": 1, "B": 1, "kB": 1000, "KiB": 1024, "MB": 1_000_000, "MiB": 1024**2}
_LEAST: Final = 1_000  # bytes; a reference takes 200
_size = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(B|kB|KiB|MB|MiB)?")


class LargePayloads:
    """Payloads that take more than `above` are kept at `url`: `s3://bucket/prefix`, `file:///folder`.

    What counts is the size after the codec. The database keeps a reference of 200 bytes. The
    objects are deleted after the last run that uses them.

    ```python
    app = App("shop", large_payloads=LargePayloads("s3://bucket/payloads", above="256kB"))
    ```
    """

    def __init__(self, url: str, *, above: int | str = "256kB") -> None:
        """Raises ConfigurationError for a URL that names no place for objects, and other sizes.

        `above` is a number of bytes, or a text such as `"256kB"` or `"1MiB"`.
        """
        self.url, self.above = check_objects_url(url), _bytes(above)

    def __repr__(self) -> str:
        return f"<LargePayloads {self.url} above {self.above:,} bytes>"


def large_payloads_of(given: LargePayloads | None) -> LargePayloads | None:
    """Return the option as given, else as $HOLDFAST_LARGE_PAYLOADS says; None without both.

    Raises ConfigurationError for what is not this option.
    """
    if given is not None:
        if not isinstance(given, LargePayloads):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"large_payloads takes LargePayloads('s3://bucket/prefix'), not {given!r}"
            )
        return given
    url = os.environ.get(LARGE_PAYLOADS_VARIABLE, "").strip()
    return LargePayloads(url) if url else None


def _bytes(size: int | str) -> int:
    found = _size.fullmatch(size.strip()) if isinstance(size, str) else None
    count = int(float(found[1]) * _UNITS[found[2] or ""]) if found is not None else size
    if isinstance(count, bool) or not isinstance(count, int) or count < _LEAST:
        raise ConfigurationError(
            f"LargePayloads: above is a size of {_LEAST:,} bytes or more, as '256kB', not {size!r}"
        )
    return count
