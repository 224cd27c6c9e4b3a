"""Traces of runs by OpenTelemetry: one trace a run, across processes and suspensions.

What a worker needs is made here, so that OpenTelemetry is imported only if tracing is on.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Final

from holdfast.errors import ConfigurationError
from holdfast.tracing.switch import VARIABLE, asked_by, is_explicit, mode
from holdfast.values.loggers import get_logger

if TYPE_CHECKING:
    from holdfast.tracing.client import ClientTracer
    from holdfast.tracing.worker import WorkerTracer

__all__ = ["client_tracer", "worker_tracer"]

logger = get_logger("holdfast.tracing")

_NEEDED: Final = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


def worker_tracer(app: str) -> WorkerTracer | None:
    """Return what writes the spans of a worker of this app, None if tracing is off.

    Raises ConfigurationError if tracing is on but its packages are not installed.
    """
    if not is_on():
        return None
    from holdfast.tracing.provider import tracer_for
    from holdfast.tracing.worker import WorkerTracer

    return WorkerTracer(tracer_for(app, shared=True))


def client_tracer(app: str | None) -> ClientTracer | None:
    """Return what writes the spans of a client, None if tracing is off.

    Raises ConfigurationError if tracing is on but its packages are not installed.
    """
    if not is_on():
        return None
    from holdfast.tracing.client import ClientTracer
    from holdfast.tracing.provider import tracer_for

    return ClientTracer(tracer_for(app, shared=False), roots=mode() == "root")


def is_on() -> bool:
    """Return True if tracing is on.

    Raises ConfigurationError if `$HOLDFAST_TRACES` asks for it and its packages are not installed.
    If only a standard variable asks for it, a warning says so: it may be meant for other programs.
    """
    if mode() == "off":
        return False
    if all(map(_is_installed, _NEEDED)):
        return True
    lacks = "OpenTelemetry is not installed: pip install 'holdfast[traces]'"
    if is_explicit():
        raise ConfigurationError(f"${VARIABLE} asks for traces, but {lacks}")
    logger.warning("$%s is set, but runs are not traced: %s", asked_by(), lacks)
    return False


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a parent of it
        return False
