"""The fields of an approval's form, and which values fit them."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import msgspec

from holdfast.errors import InvalidInput
from holdfast.types.base import Value

FieldType: TypeAlias = Literal["text", "number", "boolean", "choice"]


class FormField(Value, frozen=True, omit_defaults=True):
    """A value that the person who approves may give, or must give if it is `required`.

    `choices` are the values of a choice; `default` is used for a value that is left out.
    """

    name: str
    type: FieldType
    required: bool
    choices: tuple[str | int | float | bool | None, ...] = ()
    default: object = msgspec.UNSET
    label: str = ""

    @property
    def has_default(self) -> bool:
        """True if there is a default for a value that is left out."""
        return self.default is not msgspec.UNSET

    def check(self, value: object) -> object:
        """Return a value that fits. Raises InvalidInput, which names the field."""
        if value is None and not self.required:
            return value
        fits = {
            "text": isinstance(value, str),
            "number": _is_number(value),
            "boolean": isinstance(value, bool),
            "choice": any(_same(value, each) for each in self.choices),
        }
        if fits[self.type]:
            return value
        wanted = f"a {self.type}"
        if self.type == "choice":
            wanted = f"one of {', '.join(_written(each) for each in self.choices)}"
        raise InvalidInput(f"field {self.name!r} takes {wanted}, not {_written(value)}")


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value)


def _same(value: object, choice: object) -> bool:
    # Python's True equals 1; a form's does not.
    return value == choice and isinstance(value, bool) == isinstance(choice, bool)


def _written(value: object) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError):
        return repr(value)
