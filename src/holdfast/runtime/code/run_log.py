"""A logger for workflow code, silent while the code repeats what it has done before."""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.runtime.code.instance import Instance

logger = logging.getLogger("holdfast.workflow")


class RunLog(logging.LoggerAdapter[logging.Logger]):
    """Logs to `holdfast.workflow`; every record carries `run_id` and `workflow`."""

    def __init__(self, instance: Instance) -> None:
        info = instance.info
        super().__init__(logger, {"run_id": str(info.run_id), "workflow": info.name})
        self._instance = instance

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 (logging's own name)
        return not self._instance.replaying and super().isEnabledFor(level)

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        given = kwargs.get("extra")
        own: Mapping[str, object] = self.extra or {}
        kwargs["extra"] = {**given, **own} if isinstance(given, dict) else own
        return msg, kwargs
