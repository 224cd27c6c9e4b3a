"""Metrics as the text that Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from holdfast.telemetry.tallies import Family

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPED: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPED: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})


def render(families: Iterable[Family]) -> bytes:
    """Return metrics in the text format, version 0.0.4."""
    return "".join(line for family in families for line in _lines(family)).encode()


def _lines(family: Family) -> Iterator[str]:
    name = family.name
    yield f"# HELP {name} {family.help.translate(_HELP_ESCAPED)}\n# TYPE {name} {family.kind}\n"
    for suffix, labels, value in family.samples:
        yield f"{name}{suffix}{_labels(labels)} {_number(value)}\n"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    pairs = (f'{name}="{value.translate(_ESCAPED)}"' for name, value in labels.items())
    return "{" + ",".join(pairs) + "}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
