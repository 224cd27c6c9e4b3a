"""What callers may see, in words: `only=shop,mail/send payloads=hidden`.

A file of tokens has them in its lines, and a proxy in a header.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import ConfigurationError
from holdfast.values.names import check_reference


def read_limits(words: Sequence[str]) -> tuple[tuple[str, ...], bool]:
    """Return what a caller may see: the apps and workflows (none for all), and if payloads.

    >>> read_limits(["only=shop,mail/send", "payloads=hidden"])
    (('shop', 'mail/send'), False)

    Raises ConfigurationError for what is neither: a word that was misspelled must not open more.
    """
    found: dict[str, str] = {}
    for word in words:
        kind, _, value = word.partition("=")
        if kind in found or kind not in ("only", "payloads"):
            raise ConfigurationError(
                f"{word!r} does not say what a caller may see: write only=APP,APP/WORKFLOW or "
                "payloads=hidden, each once"
            )
        found[kind] = value
    if found.get("payloads", "hidden") != "hidden":
        raise ConfigurationError("write payloads=hidden, or nothing for a caller that sees them")
    only = found["only"].split(",") if "only" in found else []
    return tuple(check_reference("what is seen", each) for each in only), "payloads" not in found


def limits_text(only: Sequence[str], *, payloads: bool) -> str:
    """Return what `read_limits` reads, with a space before each word."""
    return (f" only={','.join(only)}" if only else "") + ("" if payloads else " payloads=hidden")
