"""Is tracing on? Answered without importing OpenTelemetry."""

from __future__ import annotations

import os
import sys
from typing import Any, Final, Literal, TypeAlias

from holdfast.errors import ConfigurationError

VARIABLE: Final = "HOLDFAST_TRACES"

_OTLP: Final = "OTEL_EXPORTER_OTLP_"
_OTHERS: Final = ("OTEL_EXPORTER_OTLP_METRICS_", "OTEL_EXPORTER_OTLP_LOGS_")

Mode: TypeAlias = Literal["off", "caller", "root"]


def mode() -> Mode:
    """Return whether runs are traced: within the traces of their callers, or as their own roots.

    Raises ConfigurationError if `$HOLDFAST_TRACES` has a value that is not known.
    """
    text = os.environ.get(VARIABLE, "").strip().lower()
    match text:
        case "0":
            return "off"
        case "1":
            return "caller"
        case "root":
            return "root"
        case "":
            return "caller" if asked_by() is not None or has_provider() else "off"
        case _:
            raise ConfigurationError(
                f"${VARIABLE} is {text!r}: use 1 for traces, root for runs that are the roots of "
                "their own traces, or 0 for none"
            )


def is_explicit() -> bool:
    """Return True if `$HOLDFAST_TRACES` itself asks for traces."""
    return os.environ.get(VARIABLE, "").strip() not in ("", "0")


def asked_by() -> str | None:
    """Return the standard variable that asks for traces, None if there is none."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    if os.environ.get("OTEL_TRACES_EXPORTER", "otlp").strip() != "otlp":
        return None
    for name, value in os.environ.items():
        if value and name.startswith(_OTLP) and not name.startswith(_OTHERS):
            return name
    return None


def has_provider() -> bool:
    """Return True if the program has set a tracer provider that can record spans."""
    return find_provider() is not None


def find_provider() -> Any | None:
    """Return the program's tracer provider, if it is one of OpenTelemetry's SDK.

    A program that has set one has imported these modules.
    """
    api, sdk = sys.modules.get("opentelemetry.trace"), sys.modules.get("opentelemetry.sdk.trace")
    if api is None or sdk is None:
        return None
    provider = api.get_tracer_provider()
    return provider if isinstance(provider, sdk.TracerProvider) else None
