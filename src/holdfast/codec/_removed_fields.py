"""What JSON text has that the value decoded from it would lose: fields that its types lack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import msgspec

from holdfast.codec._fields import elements, fields_of, is_container
from holdfast.codec._models import is_model_type
from holdfast.codec._values import encode


def removed_fields(text: str, value: object) -> list[str]:
    """Return the paths of the fields in JSON text which the types of `value` do not have.

    A model says itself what becomes of a field that it does not know, by its `extra`.
    """
    return [] if encode(value) == text else list(_removed(value, msgspec.json.decode(text), ""))


def _removed(value: object, plain: object, place: str) -> Iterator[str]:
    if not is_container(plain):
        return
    kind = type(value)
    fields = fields_of(kind)
    if fields is None:
        for part, written in elements(value, plain):
            yield from _removed(part, written, place)
        return
    if isinstance(plain, list):
        yield from (f"{place}{at}" for at in range(int(fields[-1].written) + 1, len(plain)))
    elif not is_model_type(kind):
        known = {each.written for each in fields}
        known.add(getattr(getattr(kind, "__struct_config__", None), "tag_field", ""))
        yield from (f"{place}{name}" for name in plain if name not in known)
    for each in fields:
        if each.is_in(plain):
            written = plain[cast("Any", each.written)]
            yield from _removed(getattr(value, each.name), written, f"{place}{each.written}.")
