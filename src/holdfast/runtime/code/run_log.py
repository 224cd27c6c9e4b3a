"""A logger for workflow code. It writes nothing while the code is replayed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from typing import Any

from holdfast.runtime.code.run import Run
from holdfast.values.loggers import get_logger

logger = get_logger("holdfast.workflow")


class RunLog(logging.LoggerAdapter[logging.Logger]):
    """Logs to `holdfast.workflow`; every record carries `run_id` and `workflow`."""

    def __init__(self, run: Run) -> None:
        info = run.info
        super().__init__(logger, {"run_id": str(info.run_id), "workflow": info.name})
        self._run = run

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 (logging's own name)
        return not self._run.history.replaying and super().isEnabledFor(level)

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        given = kwargs.get("extra")
        own: Mapping[str, object] = self.extra or {}
        kwargs["extra"] = {**given, **own} if isinstance(given, dict) else own
        return msg, kwargs
