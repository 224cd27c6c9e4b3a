"""Signals to other runs: commands that are carried out with the commit that records them."""

from __future__ import annotations

from uuid import UUID

import msgspec

from holdfast.codec import encode, texts_before_fields
from holdfast.details import SignalSent
from holdfast.runtime.code.commands import Command, Commands
from holdfast.runtime.code.history import SIGNAL
from holdfast.runtime.code.run import ContextPart, Run
from holdfast.values.ids import read_id, sent_id
from holdfast.values.names import check_signal_name
from holdfast.values.texts import short_id


class SendingPart(ContextPart):
    """The part of a context that sends signals to other runs."""

    __slots__ = ()

    def signal_run(self, run_id: UUID, name: str, payload: object = None) -> None:
        """Send a message to another run, once, with this run's next commit.

        If that run does not exist or has ended, the worker's log says so, and this run gets no
        answer. If it must know, let the other run answer with a signal. Raises InvalidName for a
        name outside `[a-zA-Z0-9._-]{1,128}`, InvalidInput for what is not a run's id, PayloadError
        for a payload that cannot be stored.
        """
        send_signal(self._run, read_id(run_id), name, payload)


def send_signal(
    run: Run, run_id: UUID, name: str, payload: object, signal_id: str | None = None
) -> None:
    """Record the command to send a message to another run; it is delivered once.

    Its id is by default that of the command.
    """
    loop = run.loop
    check_signal_name(name)
    text = encode(payload)
    key = loop.scope().key("signal")
    signal_id = signal_id or short_id(sent_id(run.info.run_id, key, run.info.began))
    sent = SignalSent(run_id, name, msgspec.Raw(text), signal_id)
    command = Command(SIGNAL, key, name, sent.fingerprint)
    command.earlier = lambda: map(sent.compared, texts_before_fields(text, payload))
    run.ledger(Commands).give(command, lambda: sent)
