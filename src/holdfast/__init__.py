"""Durable workflows for Python on PostgreSQL."""

from importlib import import_module
from typing import TYPE_CHECKING

from holdfast._version import __version__

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.client.handle import RunHandle
    from holdfast.client.run import Run
    from holdfast.definitions.activities import Activity
    from holdfast.definitions.app import App
    from holdfast.definitions.attempts import (
        ActivityContext,
        StepContext,
        current_activity,
        current_step,
    )
    from holdfast.definitions.middleware import CallNext, Middleware
    from holdfast.definitions.steps import Step
    from holdfast.definitions.workflows import Workflow
    from holdfast.errors import (
        ActivityFailed,
        ActivityTimedOut,
        ApprovalClosed,
        ApprovalDecided,
        ApprovalNotFound,
        CallFailed,
        ChildFailed,
        ConfigurationError,
        DatabaseError,
        DatabaseUnavailable,
        DeterminismError,
        ForkRefused,
        HoldfastError,
        InvalidInput,
        PayloadError,
        ResultTimeout,
        RunCancelled,
        RunEnded,
        RunError,
        RunExists,
        RunFailed,
        RunNotFound,
        RunTerminated,
        RunTimedOut,
        StepFailed,
        StepTimedOut,
        UnknownWorkflow,
        UpdateFailed,
        UpdateRejected,
    )
    from holdfast.local import local
    from holdfast.retry import Retry
    from holdfast.runtime.code.context import Context
    from holdfast.sync import SyncClient

__all__ = [
    "Activity",
    "ActivityContext",
    "ActivityFailed",
    "ActivityTimedOut",
    "App",
    "ApprovalClosed",
    "ApprovalDecided",
    "ApprovalNotFound",
    "CallFailed",
    "CallNext",
    "ChildFailed",
    "Client",
    "ConfigurationError",
    "Context",
    "DatabaseError",
    "DatabaseUnavailable",
    "DeterminismError",
    "ForkRefused",
    "HoldfastError",
    "InvalidInput",
    "Middleware",
    "PayloadError",
    "ResultTimeout",
    "Retry",
    "Run",
    "RunCancelled",
    "RunEnded",
    "RunError",
    "RunExists",
    "RunFailed",
    "RunHandle",
    "RunNotFound",
    "RunTerminated",
    "RunTimedOut",
    "Step",
    "StepContext",
    "StepFailed",
    "StepTimedOut",
    "SyncClient",
    "UnknownWorkflow",
    "UpdateFailed",
    "UpdateRejected",
    "Workflow",
    "__version__",
    "current_activity",
    "current_step",
    "local",
]

_HOMES = {
    "Activity": "holdfast.definitions.activities",
    "ActivityContext": "holdfast.definitions.attempts",
    "App": "holdfast.definitions.app",
    "CallNext": "holdfast.definitions.middleware",
    "Client": "holdfast.client",
    "Context": "holdfast.runtime.code.context",
    "Middleware": "holdfast.definitions.middleware",
    "Retry": "holdfast.retry",
    "Run": "holdfast.client.runs",
    "RunHandle": "holdfast.client.handle",
    "Step": "holdfast.definitions.steps",
    "StepContext": "holdfast.definitions.attempts",
    "SyncClient": "holdfast.sync",
    "Workflow": "holdfast.definitions.workflows",
    "current_activity": "holdfast.definitions.attempts",
    "current_step": "holdfast.definitions.attempts",
    "local": "holdfast.local",
}


if not TYPE_CHECKING:  # for a checker, a name that is not here is an error

    def __getattr__(name: str) -> object:
        """Import a public name when it is first used: `holdfast --version` needs no asyncio."""
        if name not in __all__:
            raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
        value = getattr(import_module(_HOMES.get(name, "holdfast.errors")), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """Return the public names, for completion in a shell."""
        return sorted(__all__)
