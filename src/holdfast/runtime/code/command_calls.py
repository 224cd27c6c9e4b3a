"""What the code gets for a command whose end it may await."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType

from holdfast.runtime.code.commands import Command, Commands
from holdfast.runtime.loop.tasks import DeferredCoroutine
from holdfast.types import Event


class CommandCall(DeferredCoroutine):
    """A command that can be awaited once, by itself or as a task, or not at all.

    The command is given at the call. This cannot be a plain coroutine: Python warns of one that is
    never awaited, and one that is cancelled before it began does not notice the cancellation.
    """

    __slots__ = ("__name__", "_commands", "_hash", "_read", "command")

    def __init__(
        self, commands: Commands, command: Command, read: Callable[[Event], object], number: int
    ) -> None:
        """`read` returns the result for the command's end; `number` is the hash of the call."""
        self._commands, self.command, self._read, self._hash = commands, command, read, number
        self.coroutine: Coroutine[object, None, object] | None = None  # once it is awaited
        self.__name__ = command.name

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"<{self.command.family} {self.command.key}>"

    def __await__(self) -> Generator[object, None, object]:
        if self.coroutine is not None:
            raise RuntimeError(f"{self!r} was awaited before: keep its result, or use a task")
        return self._begun().__await__()

    def send(self, value: None, /) -> object:
        return self._begun().send(value)

    def throw(
        self,
        typ: BaseException | type[BaseException],
        val: BaseException | object = None,
        tb: TracebackType | None = None,
        /,
    ) -> object:
        error = val if isinstance(val, BaseException) else typ
        error = error() if isinstance(error, type) else error
        if self.coroutine is None:
            if isinstance(error, asyncio.CancelledError):  # as a task, before it began
                self.coroutine = self._result(error)
                return self.coroutine.send(None)
            self._commands.withdraw(self.command)
        return self._begun().throw(error)

    def close(self) -> None:
        if self.coroutine is not None:
            self.coroutine.close()

    def _begun(self) -> Coroutine[object, None, object]:
        if self.coroutine is None:
            self.coroutine = self._result()
        return self.coroutine

    async def _result(self, cancelled: asyncio.CancelledError | None = None) -> object:
        return self._read(
            await self._commands.end_of(self.command, withdraw=True, cancelled=cancelled)
        )
