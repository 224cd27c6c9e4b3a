"""Durable workflows for Python on PostgreSQL.

Here are the names that a first program and its error handling need. Everything else is imported
from its module: `holdfast.errors`, `holdfast.definitions`, `holdfast.client`, `holdfast.types`,
`holdfast.worker`, `holdfast.testing`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from holdfast._version import __version__

if TYPE_CHECKING:
    from holdfast.client import Client, RunHandle
    from holdfast.definitions.activities import current_activity
    from holdfast.definitions.app import App
    from holdfast.definitions.batches import Batch, current_batch
    from holdfast.definitions.consumers import Discard, MessageContext, Snooze, current_message
    from holdfast.definitions.entities import reads
    from holdfast.definitions.flow_context import FlowStepContext, current_flow_step
    from holdfast.definitions.flows import Flow
    from holdfast.definitions.limits import Ageing, Fairness, Limit, Rate
    from holdfast.definitions.start_rules import Debounce, Singleton, Throttle
    from holdfast.definitions.steps import current_step
    from holdfast.definitions.transactions import Database
    from holdfast.errors import (
        ActivityFailed,
        ChildFailed,
        DatabaseError,
        HoldfastError,
        InvalidInput,
        ResultTimeout,
        RunCancelled,
        RunEnded,
        RunFailed,
        RunNotFound,
        StepFailed,
    )
    from holdfast.local_worker import local
    from holdfast.retry import Retry
    from holdfast.runtime.code.context import Context, current_context
    from holdfast.sweeping import sweep, sweep_sync
    from holdfast.sync import SyncClient

__all__ = [
    "ActivityFailed",
    "Ageing",
    "App",
    "Batch",
    "ChildFailed",
    "Client",
    "Context",
    "Database",
    "DatabaseError",
    "Debounce",
    "Discard",
    "Fairness",
    "Flow",
    "FlowStepContext",
    "HoldfastError",
    "InvalidInput",
    "Limit",
    "MessageContext",
    "Rate",
    "ResultTimeout",
    "Retry",
    "RunCancelled",
    "RunEnded",
    "RunFailed",
    "RunHandle",
    "RunNotFound",
    "Singleton",
    "Snooze",
    "StepFailed",
    "SyncClient",
    "Throttle",
    "__version__",
    "current_activity",
    "current_batch",
    "current_context",
    "current_flow_step",
    "current_message",
    "current_step",
    "local",
    "reads",
    "sweep",
    "sweep_sync",
]

_MODULES = {
    "Ageing": "holdfast.definitions.limits",
    "App": "holdfast.definitions.app",
    "Batch": "holdfast.definitions.batches",
    "Client": "holdfast.client",
    "Context": "holdfast.runtime.code.context",
    "Database": "holdfast.definitions.transactions",
    "Fairness": "holdfast.definitions.limits",
    "Debounce": "holdfast.definitions.start_rules",
    "Discard": "holdfast.definitions.consumers",
    "Flow": "holdfast.definitions.flows",
    "FlowStepContext": "holdfast.definitions.flow_context",
    "Limit": "holdfast.definitions.limits",
    "MessageContext": "holdfast.definitions.consumers",
    "Rate": "holdfast.definitions.limits",
    "Retry": "holdfast.retry",
    "RunHandle": "holdfast.client",
    "Singleton": "holdfast.definitions.start_rules",
    "Snooze": "holdfast.definitions.consumers",
    "SyncClient": "holdfast.sync",
    "Throttle": "holdfast.definitions.start_rules",
    "current_activity": "holdfast.definitions.activities",
    "current_batch": "holdfast.definitions.batches",
    "current_context": "holdfast.runtime.code.context",
    "current_flow_step": "holdfast.definitions.flow_context",
    "current_message": "holdfast.definitions.consumers",
    "current_step": "holdfast.definitions.steps",
    "local": "holdfast.local_worker",
    "reads": "holdfast.definitions.entities",
    "sweep": "holdfast.sweeping",
    "sweep_sync": "holdfast.sweeping",
}


if not TYPE_CHECKING:  # so that a type checker reports a name that is not here

    def __getattr__(name: str) -> object:
        """Import a public name when it is first used: `holdfast --version` needs no asyncio."""
        if name not in __all__:
            raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
        value = getattr(import_module(_MODULES.get(name, "holdfast.errors")), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """Return the public names, for completion in a shell."""
        return sorted(__all__)
