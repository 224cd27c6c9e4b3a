"""The form of an approval: its values come from options, or from prompts on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click
import msgspec

from holdfast.errors import InvalidInput
from holdfast.types import FormField

_YES, _NO = ("yes", "y", "true", "1"), ("no", "n", "false", "0")


def read_value(field: FormField, text: str) -> object:
    """Return the value of a field from the text that was typed. Raises InvalidInput."""
    match field.type:
        case "text":
            return field.check(text)
        case "number":
            return field.check(_number(text))
        case "boolean":
            lower = text.lower()
            return field.check(True if lower in _YES else False if lower in _NO else text)
        case "choice":
            found = (each for each in field.choices if _shown(each) == text)
            return field.check(next(found, text))


def read_values(fields: Sequence[FormField], texts: Sequence[str]) -> dict[str, object]:
    """Return the values of `NAME=VALUE` arguments by field. Raises InvalidInput."""
    by_name = {field.name: field for field in fields}
    values: dict[str, object] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidInput(f"{text!r} is not the value of a field: write NAME=VALUE")
        # The client refuses a field that the form does not have, and names those it has.
        values[name] = read_value(by_name[name], value) if name in by_name else value
    return values


def ask_for_values(fields: Sequence[FormField], given: dict[str, object]) -> dict[str, object]:
    """Ask for the values that were not given; an optional value may be left empty."""
    return given | {
        field.name: value
        for field in fields
        if field.name not in given and (value := _ask(field)) is not None
    }


def describe_field(field: FormField) -> str:
    """Return a line that describes the values of a field."""
    takes: str = field.format or field.type
    if field.type == "choice":
        takes = " | ".join(_shown(each) for each in field.choices)
    notes = [] if field.required else ["optional"]
    notes += [f"default {_shown(field.default)}"] if field.has_default else []
    label = f" {field.label}" if field.label else ""
    return f"{field.name}: {takes}{label}" + (f" ({', '.join(notes)})" if notes else "")


def _ask(field: FormField) -> object:
    default = _shown(field.default) if field.has_default else None if field.required else ""
    value: object = click.prompt(
        describe_field(field), default=default, show_default=False, value_proc=_reader(field)
    )
    return value


def _reader(field: FormField) -> Callable[[str], object]:
    def read(text: str) -> object:
        if text == "" and not field.required:
            return None
        try:
            return read_value(field, text)
        except InvalidInput as error:
            raise click.UsageError(str(error)) from None

    return read


def _number(text: str) -> object:
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text


def _shown(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
