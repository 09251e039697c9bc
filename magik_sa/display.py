"""How a job looks to a person. Never asks the database, never shows what is sensitive."""

from __future__ import annotations

from reprlib import Repr
from typing import Any, Final

from sqlalchemy import inspect

_short: Final = Repr()
_short.maxstring = _short.maxother = 80


def described(job: Any) -> str:
    """``<SettleBatch 0190… queue='payments' tenant_id='7c9e…' secret=…>``."""
    parts = [f"{name}={value}" for name, value in _arguments(job)]
    return " ".join([f"<{type(job).__name__}", str(_id(job)), *_queue(job), *parts]) + ">"


def _id(job: Any) -> Any:
    identity = inspect(job).identity
    return identity[0] if identity else job.__dict__.get("id", "?")


def _queue(job: Any) -> list[str]:
    named = [f"job_class={job.job_class!r}"] if not type(job).stored_names() and "job_class" in job.__dict__ else []
    return named + ([f"queue={job.queue!r}"] if "queue" in job.__dict__ else [])


def _arguments(job: Any) -> list[tuple[str, str]]:
    """As they are stored: that can always be shown. A name that the class does not declare may be a secret's."""
    stored = job.__dict__.get("args") or {}
    declared = type(job).__magik__.arguments
    return [(name, _told(stored[name], argument.sensitive)) for name, argument in declared.items() if name in stored]


def _told(value: Any, sensitive: bool) -> str:
    return "…" if sensitive else _short.repr(value)
