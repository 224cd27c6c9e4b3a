"""How a worker's log looks: lines for people, or one JSON object a line."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from holdfast.logs import AttemptFilter

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    "attempt_of",
}


class JsonFormatter(logging.Formatter):
    """Write a record as one JSON object; what `extra` holds stands beside the rest."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        at = datetime.fromtimestamp(record.created, UTC)
        fields: dict[str, object] = {
            "at": at.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if traceback := _traceback(self, record):
            fields["traceback"] = traceback
        fields |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        return msgspec.json.encode(fields, enc_hook=str).decode()


class LineFormatter(logging.Formatter):
    """Write a record as a line that begins with the time; only what is unusual has its level."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the traceback below it."""
        at = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        attempt_of = getattr(record, "attempt_of", "")
        line = f"{at} {level}{attempt_of}{record.getMessage()}"
        if traceback := _traceback(self, record):
            line += "\n" + traceback
        return line


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    if record.exc_info:
        return formatter.formatException(record.exc_info)
    return record.exc_text or ""


def configure(*, as_json: bool, debug: bool, level: str = "info") -> None:
    """Send the process's log to stderr, unless the app has set up logging itself.

    `level` holds for all loggers; with `debug` those of holdfast write more. What steps print is
    written line by line, so that it stands in order with the log, in a file too, and is there
    when the process is killed.
    """
    reconfigure: Callable[..., None] | None = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(line_buffering=True)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else LineFormatter())
    handler.addFilter(AttemptFilter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    if debug:
        logging.getLogger("holdfast").setLevel(logging.DEBUG)
    logging.getLogger("watchfiles").setLevel(logging.WARNING)
    # While the database is away its pools write a traceback a try; ours is a line.
    logging.getLogger("asyncpg").setLevel(logging.ERROR)
