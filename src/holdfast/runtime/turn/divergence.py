"""How code differs from the log that it has replayed, where that does not show at once."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.events import SIGNAL_RECEIVED, WORKER_LOST
from holdfast.runtime.code.instance import Instance
from holdfast.runtime.code.messages import Message
from holdfast.runtime.log.virtual_log import PYTHON, VirtualLog
from holdfast.types import Event


def differences(log: VirtualLog, instance: Instance) -> tuple[list[str], list[str]]:
    """Return what is to be warned of in any case, and what only strictness refuses."""
    warnings: list[str] = []
    others: list[str] = []
    if log.python not in (None, PYTHON):
        warnings.append(f"the run was begun on Python {log.python}, and this is Python {PYTHON}")
    forked = instance.seed != instance.info.run_id  # a fork has results of calls still to come
    if not forked and (unused := instance.loop.unused()):
        others.append(
            f"the log has calls that the code does not make, or not yet: {', '.join(unused)}"
        )
    return warnings, others


def renamed_signal(log: Sequence[Event], instance: Instance) -> list[str]:
    """Return a warning where the signal that came last is not one that the code waits for.

    Only signals that are waited for wake a run: the code may have another name for it now.
    """
    last = next((event for event in reversed(log) if event.type != WORKER_LOST), None)
    awaited = instance.mailbox.awaited
    if last is None or last.type != SIGNAL_RECEIVED or not awaited:
        return []
    name = Message.read(last).name
    if name in awaited or all(message.name != name for message in instance.mailbox.unread):
        return []
    others = " or ".join(map(repr, awaited))
    return [f"signal {name!r} came last, and the code waits for {others}: was it renamed?"]
