"""Logging for runs: which run, and which attempt of a step or activity, a line belongs to.

`holdfast worker` and `holdfast dev` use it by themselves. In a program that sets up logging on its
own, add the filter to a handler:

```python
handler = logging.StreamHandler()
handler.addFilter(AttemptFilter())
handler.setFormatter(logging.Formatter("%(asctime)s %(attempt_of)s%(message)s"))
```
"""

from __future__ import annotations

import logging
import sys

from holdfast.definitions.activities import ActivityContext
from holdfast.definitions.steps import StepContext
from holdfast.runtime.code.run_log import logger as workflow_log

__all__ = ["AttemptFilter"]


class AttemptFilter(logging.Filter):
    """Add the current step or activity to each log record that its code makes.

    The attributes are `run_id`, `key` (the call's key in the log of the run), `attempt` (counts
    from 1), and `workflow` and `step`, or `activity`. `attempt_of` is all of it as a text for
    people, so a format may always name it: of a line that a workflow writes with `ctx.log` it
    names the run, and elsewhere it is empty. If the program makes traces, `trace_id` and `span_id`
    are those of the current span, as hexadecimal digits. It adds nothing else to a record that has
    a `run_id` already, and it never drops a record.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True, with the attributes added."""
        record.attempt_of = ""
        if hasattr(record, "run_id"):
            if record.name == workflow_log.name:
                fields = vars(record)
                record.attempt_of = f"[run {fields['run_id']}, workflow {fields['workflow']}] "
            return True
        if (step := StepContext.variable.get()) is not None:
            record.workflow, record.step = step.workflow, step.step
            _add(record, step, "step")
        elif (activity := ActivityContext.variable.get()) is not None:
            record.activity = activity.name
            _add(record, activity, "activity")
        return True


def _add(record: logging.LogRecord, context: StepContext | ActivityContext, kind: str) -> None:
    record.run_id, record.key, record.attempt = str(context.run_id), context.key, context.attempt
    attempt = f", attempt {context.attempt}" if context.attempt > 1 else ""
    record.attempt_of = f"[run {context.run_id}, {kind} {context.key}{attempt}] "
    if (traces := sys.modules.get("opentelemetry.trace")) is not None:
        span = traces.get_current_span().get_span_context()
        if span.is_valid:
            record.trace_id, record.span_id = f"{span.trace_id:032x}", f"{span.span_id:016x}"
