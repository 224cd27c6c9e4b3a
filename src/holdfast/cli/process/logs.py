"""Format the log of a worker: lines for people, or one JSON object a line."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from holdfast.cli.render.console import CONTROLS
from holdfast.codec import storable, text_of
from holdfast.logs import AttemptFilter

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    "attempt_of",
}


_encode = msgspec.json.Encoder(enc_hook=str).encode


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object, with the fields of `extra`."""

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
        try:
            return _encode(fields).decode()
        except Exception:  # no line is lost, and no code fails, because of what it logs
            parts = {storable(name): _json(value) for name, value in fields.items()}
            return _encode(parts).decode()


class LineFormatter(logging.Formatter):
    """Formats a record as a line that begins with the time, with its level unless it is info."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the traceback below it."""
        at = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        attempt_of = getattr(record, "attempt_of", "")
        line = f"{at} {level}{attempt_of}{record.getMessage()}"
        if traceback := _traceback(self, record):
            line += "\n" + traceback
        return line.translate(CONTROLS)


def _json(value: object) -> msgspec.Raw:
    """Return a value as JSON: its text if it refers to itself, is too deep, or cannot be read."""
    try:
        return msgspec.Raw(_encode(value))
    except Exception:
        return msgspec.Raw(_encode(text_of(value)))


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    if record.exc_info:
        return formatter.formatException(record.exc_info)
    return record.exc_text or ""


def configure(*, as_json: bool, debug: bool, level: str = "info") -> None:
    """Send the log of the process to stderr, unless the app has configured logging itself.

    `level` applies to all loggers; with `debug` those of holdfast write more. What steps print is
    written line by line: so it stays in order with the log, even in a file, and is not lost if
    the process is killed.
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
    # While the database is unavailable asyncpg logs a traceback for each attempt; we log a line.
    logging.getLogger("asyncpg").setLevel(logging.ERROR)
