"""The trace of a run, and where it can be looked at."""

from __future__ import annotations

import os
from typing import Final

from holdfast.types import RunRecord, Value
from holdfast.values.loggers import get_logger
from holdfast.values.trace_ids import parent_of, trace_text

logger = get_logger("holdfast.tracing")

_VARIABLE: Final = "HOLDFAST_TRACE_URL"


class RunTrace(Value, frozen=True):
    """The trace of a run: its id as 32 hexadecimal digits, and a page that shows it."""

    trace_id: str
    url: str | None


def find_trace(run: RunRecord) -> RunTrace | None:
    """Return the trace of a run that was started within one, or that a page can show.

    A run that was started without a trace context has a trace too if its workers write traces.
    """
    template = os.environ.get(_VARIABLE, "").strip()
    if not template and parent_of(run.headers) is None:
        return None
    trace_id = trace_text(run.run_id, run.headers)
    return RunTrace(trace_id, _url(template, trace_id) if template else None)


def _url(template: str, trace_id: str) -> str | None:
    if "{trace_id}" in template and template.startswith(("https://", "http://")):
        return template.replace("{trace_id}", trace_id)
    logger.warning(
        "$%s is not used: write the address of a trace's page, such as "
        "https://traces.example.com/trace/{trace_id}",
        _VARIABLE,
    )
    return None
