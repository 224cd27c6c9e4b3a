"""References: what the database keeps of a payload that is an object elsewhere.

`{"holdfast:codec":"object/1","data":"s3://bucket/payloads/RUN/SHA256","bytes":1234567}` is an
envelope, so all that looks for encoded payloads finds it. The object's name has the run that owns
it and the digest of its content. `error` is added in memory, if the object could not be read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from uuid import UUID

import msgspec

REFERENCE_MARK: Final = '"holdfast:codec":"object/1"'
_TEXT: Final = r'(?:[^"\\]|\\.)*'
_reference: Final = re.compile(
    rf'\{{"holdfast:codec":"object/1","data":"({_TEXT})/payloads/([0-9a-f-]{{36}})/([0-9a-f]{{64}})"'
    rf',"bytes":(\d+)(?:,"error":"({_TEXT})")?\}}'
)


class Reference(msgspec.Struct, frozen=True):
    """A payload that is an object: where, whose, the digest of its content, and its size."""

    url: str
    owner: UUID
    digest: str
    bytes: int

    @property
    def name(self) -> str:
        """The object's name below its URL."""
        return f"payloads/{self.owner}/{self.digest}"

    @property
    def place(self) -> str:
        """The object's URL."""
        return f"{self.url}/{self.name}"

    def as_json(self, error: str | None = None) -> str:
        """Return what stands in place of the payload."""
        place = msgspec.json.encode(self.place).decode()
        told = "" if error is None else f',"error":{msgspec.json.encode(error).decode()}'
        return f'{{"holdfast:codec":"object/1","data":{place},"bytes":{self.bytes}{told}}}'


def find_references(text: str) -> list[Reference]:
    """Return the references in JSON text."""
    return [_read(found) for found in _reference.finditer(text)]


def replace_references(text: str, contents: Mapping[Reference, str]) -> str:
    """Return JSON text with what `contents` has in place of references."""
    return _reference.sub(lambda found: contents.get(_read(found), found[0]), text)


def unread_reference(text: str) -> tuple[Reference, str] | None:
    """Return the first reference in JSON text whose object could not be read, and why."""
    found = next((each for each in _reference.finditer(text) if each[5] is not None), None)
    return None if found is None else (_read(found), _unescaped(found[5]))


def describe_reference(text: str) -> str | None:
    """Say where the first payload that is an object is, and why it could not be read."""
    found = _reference.search(text)
    if found is None:
        return None
    reference = _read(found)
    error = "" if found[5] is None else f", which cannot be read: {_unescaped(found[5])}"
    return f"{_size(reference.bytes)} in {reference.place}{error}"


def _read(found: re.Match[str]) -> Reference:
    return Reference(_unescaped(found[1]), UUID(found[2]), found[3], int(found[4]))


def _unescaped(text: str) -> str:
    return msgspec.json.decode(f'"{text}"', type=str)


def _size(count: int) -> str:
    """Return a number of bytes for people.

    >>> _size(1_234_567)
    '1.2 MB'
    """
    if count < 1000:
        return f"{count} bytes"
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"
