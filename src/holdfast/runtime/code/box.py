"""The messages of one name and who waits for them: each is found without looking at the others.

A message is decoded once, and only where a pattern asks for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final, Generic, Protocol, TypeVar

from holdfast.codec import decoder
from holdfast.errors import InvalidInput
from holdfast.runtime.code.matching import Pattern, Scalars, Shape, scalars_at
from holdfast.runtime.code.messages import Message

_SHAPES: Final = 8  # of patterns by which messages are kept in order; more begin anew
_UNREADABLE: Final = object()  # contains nothing

_read_plain = decoder(object)


class Letter:
    """A message that was not taken, and its number."""

    __slots__ = ("_plain", "message", "number")

    def __init__(self, message: Message, number: int) -> None:
        self.message, self.number = message, number
        self._plain: object = None

    @property
    def plain(self) -> object:
        """The payload as plain JSON."""
        if self._plain is None:
            try:
                self._plain = _read_plain(self.message.payload)
            except InvalidInput:
                self._plain = _UNREADABLE
        return self._plain


class Waiter:
    """Waits for a message; `offered` is the one that has woken it."""

    __slots__ = ("future", "number", "offered", "pattern")

    def __init__(self, pattern: Pattern, number: int) -> None:
        self.pattern, self.number = pattern, number
        self.future: asyncio.Future[None] | None = None
        self.offered: Letter | None = None

    def wake(self, letter: Letter) -> None:
        """Let it look."""
        assert self.future is not None, "who waits has something to wait for"
        self.offered = letter
        self.future.set_result(None)


class _Numbered(Protocol):
    @property
    def number(self) -> int: ...


N = TypeVar("N", bound=_Numbered)


class _Drawers(Generic[N]):
    """Things by the scalars that patterns of one shape look at, in the order of their numbers."""

    __slots__ = ("_drawers",)

    def __init__(self) -> None:
        self._drawers: dict[Scalars, dict[int, N]] = {}

    def __bool__(self) -> bool:
        return bool(self._drawers)

    def add(self, scalars: Scalars | None, thing: N) -> None:
        if scalars is not None:
            self._drawers.setdefault(scalars, {})[thing.number] = thing

    def remove(self, scalars: Scalars | None, thing: N) -> None:
        if scalars is not None and (drawer := self._drawers.get(scalars)):
            drawer.pop(thing.number, None)
            if not drawer:
                del self._drawers[scalars]

    def like(self, scalars: Scalars | None) -> Iterator[N]:
        return iter(() if scalars is None else self._drawers.get(scalars, {}).values())


class Box:
    """What was sent under one name."""

    __slots__ = ("_impatient", "_letters_by", "_next", "_waiters_by", "letters")

    def __init__(self) -> None:
        self.letters: dict[int, Letter] = {}
        self._impatient: dict[int, Waiter] = {}  # take any message
        self._letters_by: dict[Shape, _Drawers[Letter]] = {}
        self._waiters_by: dict[Shape, _Drawers[Waiter]] = {}
        self._next = 0

    @property
    def waits(self) -> bool:
        """Whether somebody waits."""
        return bool(self._impatient or self._waiters_by)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is kept, and nobody waits."""
        return not (self.letters or self.waits)

    def _number(self) -> int:
        self._next += 1
        return self._next

    # Messages

    def put(self, message: Message) -> Letter:
        """Keep a message."""
        letter = Letter(message, self._number())
        self.letters[letter.number] = letter
        for shape, drawers in self._letters_by.items():
            drawers.add(scalars_at(letter.plain, shape), letter)
        return letter

    def find(self, pattern: Pattern) -> Letter | None:
        """Return the first message that contains a pattern."""
        if pattern.matches_all:
            return next(iter(self.letters.values()), None)
        if not self.letters:
            return None
        alike = self._by_shape(pattern.shape).like(pattern.scalars)
        return next((letter for letter in alike if pattern.matches(letter.plain)), None)

    def remove(self, letter: Letter) -> None:
        """Take a message out."""
        del self.letters[letter.number]
        for shape, drawers in self._letters_by.items():
            drawers.remove(scalars_at(letter.plain, shape), letter)

    def _by_shape(self, shape: Shape) -> _Drawers[Letter]:
        drawers = self._letters_by.get(shape)
        if drawers is None:
            if len(self._letters_by) >= _SHAPES:
                self._letters_by.clear()
            drawers = self._letters_by[shape] = _Drawers()
            for letter in self.letters.values():
                drawers.add(scalars_at(letter.plain, shape), letter)
        return drawers

    # Who waits

    def join(self, pattern: Pattern) -> Waiter:
        """Wait for a message that contains a pattern, behind those who wait already."""
        waiter = Waiter(pattern, self._number())
        if pattern.matches_all:
            self._impatient[waiter.number] = waiter
        else:
            self._waiters_by.setdefault(pattern.shape, _Drawers()).add(pattern.scalars, waiter)
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """Wait no more."""
        pattern = waiter.pattern
        if pattern.matches_all:
            del self._impatient[waiter.number]
            return
        drawers = self._waiters_by[pattern.shape]
        drawers.remove(pattern.scalars, waiter)
        if not drawers:
            del self._waiters_by[pattern.shape]

    def offer(self, letter: Letter) -> None:
        """Wake the first who waits for a message like this one, unless it was taken."""
        if letter.number in self.letters:
            first = min(self._takers(letter), key=lambda waiter: waiter.number, default=None)
            if first is not None:
                first.wake(letter)

    def _takers(self, letter: Letter) -> Iterator[Waiter]:
        """Yield the first of each kind that would take a message, and was not woken."""
        yield from _first(self._impatient.values(), letter)
        for shape, drawers in self._waiters_by.items():
            yield from _first(drawers.like(scalars_at(letter.plain, shape)), letter)


def _first(waiters: Iterable[Waiter], letter: Letter) -> Iterator[Waiter]:
    for waiter in waiters:
        asleep = waiter.future is not None and not waiter.future.done()
        if asleep and (waiter.pattern.matches_all or waiter.pattern.matches(letter.plain)):
            yield waiter
            return
