"""Values on their way to the store: encoded, and those that are large put outside before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, TypeVar
from uuid import UUID

import msgspec

from holdfast.payloads.encoding import Payloads, size_of
from holdfast.payloads.shelf import Put, Shelf
from holdfast.types import NewRun, StartRules

Outcome = TypeVar("Outcome")

SOON_SECONDS: Final = 0.25  # that others in the same call may wait for an object


class Outgoing:
    """The values of one call of the store. They are sealed first; then `put`; then the call."""

    def __init__(self, payloads: Payloads, shelf: Shelf | None) -> None:
        self.payloads, self._shelf = payloads, shelf
        self.puts: list[tuple[Put, UUID | None]] = []

    def seal(self, text: str, what: str, owner: UUID, user: UUID | None = None) -> str:
        """Return what is stored of JSON text: itself, an envelope, or a reference to an object.

        The object belongs to the run `owner`; `user` is the run that refers to it. Raises
        PayloadError as `Payloads.seal` does.
        """
        shelf = self._shelf
        if text == "null":
            return text
        if shelf is None or not self.payloads.may_be_outside(text):
            return self.payloads.seal(text, what)
        put = shelf.find(owner, text)
        if put is None:
            sealed = self.payloads.seal(text, what)
            if size_of(sealed) <= shelf.above:
                return sealed
            put = shelf.add(owner, text, sealed)
        self.puts.append((put, None if user == owner else user))
        return put.reference.as_json()

    async def put(self) -> None:
        """Put the objects. Raises ObjectsUnavailable if one is not there after a while."""
        if self._shelf is not None and self.puts:
            await self._shelf.put(self.puts)

    async def put_soon(self) -> set[Put]:
        """Begin to put the objects; return those that are not there yet."""
        if self._shelf is None or not self.puts:
            return set()
        return await self._shelf.begin(self.puts, SOON_SECONDS)

    async def missing(self, values: Sequence[str | None]) -> list[bool]:
        """Begin to put the objects; return for each value whether it refers to one that is
        not there yet."""
        references = {put.reference.as_json() for put in await self.put_soon()}
        return [value in references for value in values]


def spread(outcomes: Iterable[Outcome], busy: Sequence[bool]) -> list[Outcome | Literal["busy"]]:
    """Return the outcomes of those that were reported, and `busy` for the others, in order."""
    given = iter(outcomes)
    return ["busy" if is_busy else next(given) for is_busy in busy]


class _Rules(msgspec.Struct):
    """The rules of a start, as far as they have keys."""

    declared: StartRules | None = None
    given: StartRules | None = None


_read_rules = msgspec.json.Decoder(_Rules).decode


def seal_run(outgoing: Outgoing, run: NewRun) -> NewRun:
    """Return a run to start whose input is encoded.

    Raises PayloadError if it is too large, and ConfigurationError for rules with keys in it.
    """
    if run.rules is not None:
        rules = _read_rules(run.rules)
        for each in (rules.declared, rules.given):
            if each is not None:
                keys = (each.singleton_key, each.debounce_key, each.throttle_key)
                outgoing.payloads.check_keys(f"start of {run.name}", *keys)
    if run.input == "null":
        return run
    of = run.name if run.key is None else f"{run.name} with the key {run.key}"
    sealed = outgoing.seal(run.input, f"the input of {of}", run.run_id)
    return msgspec.structs.replace(run, input=sealed)
