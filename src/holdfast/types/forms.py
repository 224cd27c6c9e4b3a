"""The fields of an approval's form, and which values fit them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Final, Literal, TypeAlias

import msgspec

from holdfast.errors import InvalidInput
from holdfast.types.base import Value

FieldType: TypeAlias = Literal["text", "number", "boolean", "choice"]
FieldFormat: TypeAlias = Literal["", "date", "date-time", "decimal"]

FORMAT_EXAMPLES: Final[Mapping[str, str]] = {
    "date": "2030-12-31",
    "date-time": "2030-12-31T12:00:00Z",
    "decimal": "12.50",
}


class FormField(Value, frozen=True, omit_defaults=True):
    """A value that the person who approves may give, or must give if it is `required`.

    `choices` are the values of a choice; `default` is used for a value that is left out. A text
    with a `format` is a date or a moment in ISO 8601, or a decimal number.
    """

    name: str
    type: FieldType
    required: bool
    choices: tuple[str | int | float | bool | None, ...] = ()
    default: object = msgspec.UNSET
    label: str = ""
    format: FieldFormat = ""

    @property
    def has_default(self) -> bool:
        """True if there is a default for a value that is left out."""
        return self.default is not msgspec.UNSET

    def check(self, value: object) -> object:
        """Return a value that fits. Raises InvalidInput, which names the field."""
        if value is None and not self.required:
            return value
        if self.format:
            return self._formatted(value)
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

    def _formatted(self, value: object) -> str:
        """Return a value as text of the format; it may be an object of its type, too."""
        try:
            text = str(msgspec.to_builtins(value))
            match self.format:
                case "date":
                    return date.fromisoformat(text).isoformat()
                case "date-time":
                    return datetime.fromisoformat(text).isoformat()
                case _:
                    return _decimal(text)
        except (TypeError, ValueError, ArithmeticError):
            wanted = f"a {self.format}, such as {FORMAT_EXAMPLES[self.format]}"
            said = f"field {self.name!r} takes {wanted}, not {_written(value)}"
            raise InvalidInput(said) from None


def _decimal(text: str) -> str:
    if not (found := Decimal(text)).is_finite():
        raise ValueError(text)
    return str(found)


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
