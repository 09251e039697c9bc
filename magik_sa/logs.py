"""One event, one line, stable fields.

The package logs through the standard library's logger ``magik_sa`` and adds no handler to it; only the
worker's own process does, and only where the application has not configured logging itself. Arguments of jobs
and passwords are never logged.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

logger = logging.getLogger("magik_sa")


def say(level: int, event: str, /, **fields: Any) -> None:
    """Log `event` with its fields, as ``event=claimed job_id=… queue=…``; the fields stand on the record too."""
    if logger.isEnabledFor(level):
        kept = {key: value for key, value in fields.items() if value is not None}
        line = " ".join(f"{key}={_shown(value)}" for key, value in {"event": event, **kept}.items())
        logger.log(level, "%s", line, extra={"magik": {"event": event, **kept}})


def _shown(value: Any) -> str:
    """A value on one line: quoted where it holds blanks or anything that a terminal would act on."""
    text = str(value)
    plain = text.isascii() and text.isprintable() and text and not set(text) & set(' "=\\')
    return text if plain else json.dumps(text)


class JsonFormatter(logging.Formatter):
    """A record as one JSON object: time, level, logger, then the event's own fields (or the message)."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "magik", None) or {"message": record.getMessage()}
        head = {"time": self.formatTime(record), "level": record.levelname, "logger": record.name}
        if record.exc_info:
            fields = {**fields, "traceback": self.formatException(record.exc_info)}
        return json.dumps({**head, **fields}, default=str)


def to_stderr(log_format: str) -> None:
    """Send the package's events to stderr, unless somebody already listens to them."""
    if logger.hasHandlers():
        return
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(JsonFormatter() if log_format == "json" else text)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
