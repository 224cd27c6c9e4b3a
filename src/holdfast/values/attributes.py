"""Attributes of runs: names with values that lists find runs by.

A filter compares texts of values, as a person types them: `7` finds the number and the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from holdfast.codec import encode
from holdfast.errors import ConfigurationError, InvalidInput, PayloadError
from holdfast.types.base import AttributeValue
from holdfast.values.names import check_attribute_name

_decoder: Final[msgspec.json.Decoder[AttributeValue]] = msgspec.json.Decoder(AttributeValue)

MAX_ATTRIBUTES: Final = 4096  # bytes of their JSON
MAX_VALUE: Final = 500  # characters: an index must hold it


def check_attributes(given: Mapping[str, AttributeValue] | None) -> dict[str, AttributeValue]:
    """Return attributes as they are stored.

    Raises InvalidName, InvalidInput, and ConfigurationError for what is not a mapping.
    """
    checked = check_changes(given)
    for name, value in checked.items():
        if value is None:
            raise InvalidInput(f"attribute {name} is None: leave it out")
    return {name: value for name, value in checked.items() if value is not None}


def check_changes(
    given: Mapping[str, AttributeValue | None] | None,
) -> dict[str, AttributeValue | None]:
    """Return changes of attributes, None for one to remove. Raises as `check_attributes`."""
    given = {} if given is None else given
    # Callers without a type checker pass anything.
    if not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"attributes are names with values, not {given!r}")
    checked = {check_attribute_name(name): _stored(name, value) for name, value in given.items()}
    check_size(checked)
    return checked


def check_size(attributes: Mapping[str, AttributeValue | None]) -> None:
    """Raise InvalidInput for attributes that take more than 4,096 bytes as JSON."""
    size = len(encode(attributes).encode())
    if size > MAX_ATTRIBUTES:
        raise InvalidInput(
            f"the attributes take {size:,} bytes, more than {MAX_ATTRIBUTES:,}: they are for "
            "finding runs, so keep what is large in the input"
        )


def attribute_text(value: AttributeValue) -> str:
    """Return the text of a value, by which runs are found and counted.

    >>> attribute_text("acme"), attribute_text(7), attribute_text(7.5), attribute_text(True)
    ('acme', '7', '7.5', 'true')
    """
    return value if isinstance(value, str) else encode(value)


def attribute_filters(attributes: Mapping[str, AttributeValue]) -> list[str]:
    """Return the filters that find each attribute, by name.

    >>> attribute_filters({"seats": 7, "customer": "acme", "city": "New York"})
    ['city="New York"', 'customer=acme', 'seats=7']
    """
    return [
        f"{name}={_quoted(attribute_text(value))}" for name, value in sorted(attributes.items())
    ]


def read_attributes(texts: Iterable[str]) -> dict[str, AttributeValue]:
    """Return what `NAME=VALUE` texts say: a number, true, false, or else a text.

    Raises InvalidInput. A value in double quotes is a text in any case.

    >>> read_attributes(["customer=acme", "seats=7", 'zip="01067"', "code=01067"])
    {'customer': 'acme', 'seats': 7, 'zip': '01067', 'code': '01067'}
    """
    found: dict[str, AttributeValue] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidInput(f"{text!r} is not NAME=VALUE, such as customer=acme")
        found[name] = _typed(value)
    return found


def _quoted(text: str) -> str:
    """Return a text as JSON if a search would split it, or read it as JSON."""
    if not re.search(r'[\s"]', text):
        return text
    return '"' + r"\u0022".join(encode(part)[1:-1] for part in text.split('"')) + '"'


def _typed(text: str) -> AttributeValue:
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        return text


def _stored(name: str, value: object) -> AttributeValue | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise InvalidInput(f"attribute {name} is {value}: a whole number has 64 bits")
    if not isinstance(value, str | int | float):
        raise InvalidInput(
            f"attribute {name} is {value!r}: an attribute is a text, a number or a boolean"
        )
    try:
        encode(value)
    except PayloadError as error:
        raise InvalidInput(f"attribute {name}: {error}") from None
    if len(attribute_text(value)) > MAX_VALUE:
        raise InvalidInput(
            f"attribute {name} has more than {MAX_VALUE} characters: keep what is long in the input"
        )
    return value
