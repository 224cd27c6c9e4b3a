"""How code differs from the log that it has replayed, where that does not show at once."""

from __future__ import annotations

from holdfast.runtime.code.instance import Instance
from holdfast.runtime.log.virtual_log import PYTHON, VirtualLog


def differences(log: VirtualLog, instance: Instance) -> tuple[list[str], list[str]]:
    """Return what is to be warned of in any case, and what only strictness refuses."""
    warnings: list[str] = []
    others: list[str] = []
    if log.python not in (None, PYTHON):
        warnings.append(f"the run was begun on Python {log.python}, and this is Python {PYTHON}")
    forked = instance.seed != instance.info.run_id  # a fork has results of calls still to come
    if not forked and (unused := instance.loop.unused()):
        others.append(f"the log has calls that the code does not make: {', '.join(unused)}")
    return warnings, others
