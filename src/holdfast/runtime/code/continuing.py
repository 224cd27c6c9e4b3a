"""Continuing as new: a run whose log is long continues as another run, with a new input."""

from __future__ import annotations

import asyncio

import msgspec

from holdfast.codec import encode
from holdfast.errors import ConfigurationError
from holdfast.events import ContinuedAsNew
from holdfast.ids import continued_run_id
from holdfast.runtime.code.mailbox import Mailbox
from holdfast.runtime.code.run import Run
from holdfast.runtime.code.updates import Updates


class ContinueAsNew(BaseException):
    """Ends a workflow's code, which continues as another run; not an error, so never caught as one.

    `input` is JSON text.
    """

    def __init__(self, input: str, version: int) -> None:
        super().__init__("the workflow continues as a new run")
        self.input, self.version = input, version


def continue_as_new(run: Run, input: object, version: int | None) -> ContinueAsNew:
    """Return what to raise. The input is checked here, as that of a started run is."""
    if asyncio.current_task(run.loop) is not run.loop.root:
        raise ConfigurationError(
            "continue_as_new() ends the whole run: call it in the workflow's own task, not in "
            "one that it has made or in the handler of an update"
        )
    workflow = run.workflow
    if version in (None, workflow.version):
        return ContinueAsNew(workflow.encode_input(input), workflow.version)
    return ContinueAsNew(encode(input), version or workflow.version)


def continuation(run: Run, asked: ContinueAsNew) -> ContinuedAsNew:
    """Describe the run that takes this run's place, with the messages that it has not read."""
    unread = run.ledger(Mailbox).unread + run.ledger(Updates).unread
    return ContinuedAsNew(
        run_id=continued_run_id(run.info.run_id, run.loop.now),
        input=msgspec.Raw(asked.input),
        version=asked.version,
        signals=[message.carried() for message in unread],
    )
