"""One event, one line, stable fields.

The package logs through the standard library's logger ``magik_sa`` and adds no handler to it; only the
worker's own process does, and only where the application has not configured logging itself. Arguments of jobs
and passwords are never logged.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sys
import traceback
from functools import cache
from math import isfinite
from typing import Any

_ALWAYS: dict[str, Any] = {}  # what each line of this process has besides
_PLAIN = re.compile(r"[!#-<>-\[\]-~]+").fullmatch  # of the printable ASCII all but the blank, ", = and \\


@cache
def _logger() -> logging.Logger:
    """Not there before the first line: a `dictConfig` of the application's disables every logger that it finds."""
    return logging.getLogger("magik_sa")


def always(**fields: Any) -> None:
    """Have each line say this, too: of one of several processes that write to the same place, which it is."""
    _ALWAYS.update(fields)


def is_said(level: int) -> bool:
    """Whether a line of this level is written anywhere: where it is not, its fields need not be put together."""
    return _logger().isEnabledFor(level)


def say(level: int, event: str, /, **fields: Any) -> None:
    """Log `event` with its fields, as ``event=claimed job_id=… queue=…``; the fields stand on the record too."""
    if (logger := _logger()).isEnabledFor(level):
        kept = _kept(event, fields)
        line = " ".join([f"{key}={_shown(value)}" for key, value in kept.items()])
        try:  # no search for the caller: the event tells where it is from
            logger.handle(logger.makeRecord(logger.name, level, "magik_sa", 0, line, (), None, None, {"magik": kept}))
        except Exception as error:  # a filter or a handler of the application's: no reason to end a thread of a worker
            with contextlib.suppress(Exception):  # stderr may be closed
                sys.stderr.write(f"{line} not_logged={type(error).__name__}\n{traceback.format_exc()}")


def _kept(event: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {"event": event, **_ALWAYS, **{key: value for key, value in fields.items() if value is not None}}


def _shown(value: Any) -> str:
    """A value on one line: quoted where it holds blanks or anything that a terminal would act on."""
    text = str(value)
    return text if _PLAIN(text) else json.dumps(text)


class JsonFormatter(logging.Formatter):
    """A record as one JSON object: time, level, logger, then the event's own fields (or the message)."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "magik", None) or {"message": record.getMessage()}
        head = {"time": self.formatTime(record), "level": record.levelname, "logger": record.name}
        if record.exc_info:
            fields = {**fields, "traceback": self.formatException(record.exc_info)}
        return json.dumps({**head, **{key: _plain(value) for key, value in fields.items()}}, default=str)


def _plain(value: Any) -> Any:
    """JSON has no number for what is infinite."""
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def as_json(level: int, event: str, /, **fields: Any) -> str:
    """The line of an event that the logger is not asked to write: what keeps a worker from starting, or ends it."""
    kept = _kept(event, fields)
    name = logging.getLevelName(level)
    return JsonFormatter().format(logging.makeLogRecord({"name": "magik_sa", "levelname": name, "magik": kept}))


def to_stderr(log_format: str | None) -> None:
    """Send the package's events to stderr in `log_format`; without one only where nobody listens to them, as text.

    A handler that the application has given this very logger outweighs both.
    """
    if (logger := _logger()).handlers or (log_format is None and logger.hasHandlers()):
        return
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(JsonFormatter() if log_format == "json" else text)
    logger.addHandler(handler)
    logger.propagate = False
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
