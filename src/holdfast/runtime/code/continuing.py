"""Continuing as new: a run whose log is long continues as another run, with a new input."""

from __future__ import annotations

import asyncio
import sys
from typing import Never

import msgspec

from holdfast.codec import encode
from holdfast.details import ContinuedAsNew
from holdfast.errors import ConfigurationError
from holdfast.runtime.code.caught import Caught
from holdfast.runtime.code.mailbox import Mailbox
from holdfast.runtime.code.run import ContextPart, Run
from holdfast.runtime.code.updates import Updates
from holdfast.types import UPDATE_REPLY
from holdfast.values.ids import continued_run_id
from holdfast.values.numbers import whole_number


class ContinueAsNew(BaseException):
    """Raised to end a workflow's code, so that a new run continues it.

    Not an Exception: `except Exception` in workflow code must not catch it. `input` is JSON text.
    """

    def __init__(self, input: str, version: int) -> None:
        super().__init__("the workflow continues as a new run")
        self.input, self.version = input, version


class ContinuingPart(ContextPart):
    """The part of a context for the end of the code, or of what continues as a new run."""

    __slots__ = ()

    def continue_as_new(self, input: object = None, *, version: int | None = None) -> Never:
        """End this run and continue as a new one with an empty log, for loops without an end.

        The new run gets the messages that were not read, and the name, tags, attributes and queue.
        Callers that wait for the result wait for the new run's. Activities that were called and
        not awaited end first.

        Raises InvalidInput and PayloadError for an input that a start would refuse, and
        ConfigurationError for a version that no workflow can have, and outside of the workflow's
        own task.
        """
        workflow = self._run.workflow
        self._check_own_task("continue_as_new() ends the whole run")
        if sys.exception() is not None:
            self._run.ledger(Caught).note_call("continue_as_new", lambda: True)
        if version is None:
            version = workflow.version
        if whole_number(version, "continue_as_new", "version", 1) == workflow.version:
            raise ContinueAsNew(workflow.encode_input(input), version)
        raise ContinueAsNew(encode(input), version)

    async def finish_updates(self) -> None:
        """Wait until no handler of an update runs. Call it before the code returns or continues.

        ```python
        await ctx.finish_updates()
        ctx.continue_as_new(total)
        ```

        Handlers that run when the code ends are dropped. An update that comes between this and
        `continue_as_new` waits for the new run.

        Raises ConfigurationError anywhere but in the workflow's own task.
        """
        self._check_own_task("finish_updates() waits for all handlers")
        await self._run.ledger(Updates).finish()

    def _check_own_task(self, what: str) -> None:
        if asyncio.current_task(self._run.loop) is not self._run.loop.root:
            raise ConfigurationError(
                f"{what}: call it in the workflow's own task, not in one that it has made or in "
                "the handler of an update"
            )


def continuation(run: Run, asked: ContinueAsNew) -> ContinuedAsNew:
    """Return the event that starts the next run, with the messages that this run has not read.

    Answers to updates stay behind: the next run has not asked.
    """
    unread = [each for each in run.ledger(Mailbox).unread if each.name != UPDATE_REPLY]
    unread += run.ledger(Updates).unread
    return ContinuedAsNew(
        run_id=continued_run_id(run.info.run_id, run.loop.now),
        input=msgspec.Raw(asked.input),
        version=asked.version,
        signals=[message.carried() for message in unread],
    )
