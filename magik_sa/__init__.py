"""magik_sa: jobs that live in the application's own Postgres, as SQLAlchemy mapped classes.

The names are loaded when they are first asked for, so that ``python -m magik_sa.worker`` listens to its
signals from the first instruction, before anything slow is imported.

PYTEST_DONT_REWRITE: pytest, which finds fixtures here, is not to warn where the package was imported before it starts.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .args import arg
    from .around import around_perform
    from .bulk import bulk_enqueue
    from .carried import context
    from .effects import once
    from .enqueue import Job, UnknownJob, metadata
    from .errors import (
        BootError,
        BootRefused,
        DeclarationError,
        EnqueueError,
        JobTimeout,
        KitError,
        MagikError,
        RunError,
        WorkerError,
    )
    from .outcome import Discard, Snooze
    from .pausing import pause_queue, resume_queue
    from .pruning import prune
    from .retries import Retries
    from .schedule import Schedule
    from .verb import policy
    from .worker import Worker

__version__ = "0.1.0"

_HOMES = {
    "arg": "args",
    "around_perform": "around",
    "bulk_enqueue": "bulk",
    "context": "carried",
    "Job": "enqueue",  # the job class, with the listeners that make adding it to a Session an enqueue
    "UnknownJob": "enqueue",
    "metadata": "enqueue",
    "once": "effects",
    "policy": "verb",
    "pause_queue": "pausing",
    "resume_queue": "pausing",
    "prune": "pruning",
    "Discard": "outcome",
    "Snooze": "outcome",
    "Retries": "retries",
    "Schedule": "schedule",
    "Worker": "worker",
    **dict.fromkeys(
        [
            "BootError",
            "BootRefused",
            "DeclarationError",
            "EnqueueError",
            "JobTimeout",
            "KitError",
            "MagikError",
            "RunError",
            "WorkerError",
        ],
        "errors",
    ),
}

__all__ = [
    "BootError",
    "BootRefused",
    "DeclarationError",
    "Discard",
    "EnqueueError",
    "Job",
    "JobTimeout",
    "KitError",
    "MagikError",
    "Retries",
    "RunError",
    "Schedule",
    "Snooze",
    "UnknownJob",
    "Worker",
    "WorkerError",
    "arg",
    "around_perform",
    "bulk_enqueue",
    "context",
    "metadata",
    "once",
    "pause_queue",
    "policy",
    "prune",
    "resume_queue",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
