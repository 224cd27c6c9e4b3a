"""Loggers of holdfast: a filter or a handler of the program that raises stops no work."""

from __future__ import annotations

import logging
from functools import partial


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a name. What its filters and handlers raise is shown, not raised.

    It is shown as `logging` shows what goes wrong inside of a handler: on stderr, unless
    `logging.raiseExceptions` is false. Raised where a line is written, it would end the turn, the
    batch or the service that wrote it.
    """
    logger = logging.getLogger(name)
    vars(logger)["handle"] = partial(_handle, logger)
    return logger


def _handle(logger: logging.Logger, record: logging.LogRecord) -> None:
    try:
        type(logger).handle(logger, record)
    except Exception:
        logging.Handler().handleError(record)
