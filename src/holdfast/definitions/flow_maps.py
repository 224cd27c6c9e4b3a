"""Options of map steps: how many elements may fail, and how many are under way at once."""

from __future__ import annotations

import re
from typing import Final, Optional, TypedDict

from holdfast.definitions.flow_types import list_of
from holdfast.errors import ConfigurationError
from holdfast.types import StepShape
from holdfast.values.numbers import whole_number

_percent: Final = re.compile(r"(\d{1,3})%")


class MapShape(TypedDict, total=False):
    """The fields of a map's shape."""

    tolerated_count: int
    tolerated_percent: int
    concurrency: int


def read_map_options(tolerate: int | str | None, concurrency: int | None, of: str) -> MapShape:
    """Return the options of the map `of` as its shape has them. Raises ConfigurationError."""
    shape = MapShape()
    if isinstance(tolerate, str):
        found = _percent.fullmatch(tolerate)
        if found is None or int(found[1]) > 100:
            raise ConfigurationError(
                f'{of}: tolerate: a number of elements or "0%" to "100%" is needed, '
                f"not {tolerate!r}"
            )
        shape["tolerated_percent"] = int(found[1])
    elif tolerate is not None:
        shape["tolerated_count"] = whole_number(tolerate, of, "tolerate", 0)
    if concurrency is not None:
        shape["concurrency"] = whole_number(concurrency, of, "concurrency", 1)
    return shape


def tolerates(step: StepShape) -> bool:
    """Return True if elements of a map may fail."""
    return (step.tolerated_count, step.tolerated_percent) != (None, None)


def map_output(element: object, step: StepShape) -> object:
    """Return the type of the output of a map: a list, with None for elements that may fail."""
    return list_of(Optional[element] if tolerates(step) else element)  # noqa: UP045 - at run time
