"""The worker as an object: boot, threads, drain."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from sqlalchemy import URL

from ..boot import Booted, boot
from ..errors import BootError, BootRefused, MagikError, WorkerError
from ..logs import say
from ..one_exchange import OneExchange
from ..pruning import kept
from ..sessions import UNLIMITED, Sessions, room
from ..settings import Settings, read, schema
from ..timeout import Limits
from .condition import Condition
from .duties import duties
from .letters import Abandon, Assignment, Stop
from .locker import Locker
from .maintenance import Maintenance, Upkeep
from .performer import Performer
from .scheduler import Scheduler
from .watchdog import Watchdog

CONSTANT = 1  # connections beside one a thread: the locking connection


class Worker:
    """Runs jobs in this process: ``with Worker("postgresql+psycopg://…", concurrency=2): …``.

    For a notebook, a test or a development server; in production ``python -m magik_sa.worker`` wraps the same
    object with signals and exit codes. Options are those of the command line (`magik_sa.settings.Settings`);
    durations are text ("5s"). A URL may be SQLAlchemy's own (``engine.url``).
    `session` may be a sessionmaker or scoped_session itself.

    Raises `BootRefused` on entering, with everything that stands against working.
    """

    def __init__(
        self, database_url: str | URL | None = None, *, session: Sessions | str | None = None, **options: Any
    ) -> None:
        if "processes" in options:
            what = "processes: a Worker is a part of one process; several are for the command line."
            raise BootRefused([BootError("MAGIK_SETTING_INVALID", what, field="processes")])
        named = session if isinstance(session, str) else None
        told = {"database_url": database_url, "session": named, **_tuples(options), "processes": 1}
        self._begin(
            read({name: _as_text(value) for name, value in told.items()}), None if isinstance(session, str) else session
        )

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """That of a process, whose settings have been read."""
        worker = cls.__new__(cls)
        worker._begin(settings, None)
        return worker

    def _begin(self, settings: Settings, sessions: Sessions | None) -> None:
        self.settings, self._sessions = settings, sessions
        self._connections: int | None = None
        self._stop = threading.Event()
        self.condition = Condition(self._stop)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if not self.wait(self.settings.shutdown_timeout.total_seconds()):
            self.abandon()

    def start(self) -> None:
        """Boot, start the threads, and return when the worker listens."""
        self.boot()
        self.launch()
        while not self.ready(0.1) and self.locker.is_alive():
            pass

    def boot(self, imported: Callable[[], None] = lambda: None) -> None:
        """Prove that the worker can work. Raises `BootRefused`; nothing is claimed yet."""
        faults = self.condition.serve(self.settings)
        try:
            self.booted = boot(self.settings, self._sessions, imported, faults)
        except BootRefused:
            self.condition.leave()
            raise
        self._connections = connections(self.booted)

    def launch(self) -> None:
        """Start the threads. Returns at once; from now on there may be something to drain.

        The schedules are written first, so that whoever sees a worker that is ready sees its schedules.
        """
        self._stop.clear()
        place, limits = self.booted.place, Limits()
        scheduler = Scheduler(self.booted.known, self.booted.timetable, place.engine, place.sessions, limits)
        scheduler.write()
        self.scheduler = scheduler if self.booted.timetable else None
        self.locker = Locker(_assignment(self.booted), self._announce)
        in_one = OneExchange(place.engine)
        self.performers = [
            Performer(n + 1, self.locker, place.engine, place.sessions, self._stop, limits, in_one)
            for n in range(self.settings.concurrency)
        ]
        self.maintenance = Maintenance(_upkeep(self.booted)) if self.settings.maintenance else None
        self.watchdog = Watchdog(self.locker, limits, self.scheduler, self.maintenance)
        self.condition.watch(self.locker, self._threads())
        for thread in self._threads():
            thread.start()

    def ready(self, seconds: float) -> bool:
        """Wait up to `seconds` until the worker listens; whether it does."""
        return self.locker.ready.wait(seconds)

    def stop(self) -> None:
        """Claim nothing more; what runs may end. Returns at once."""
        self._stop.set()
        if self.scheduler is not None:
            self.scheduler.stop()
        if self.maintenance is not None:
            self.maintenance.stop()
        self.locker.mail.put(Stop())

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for all threads; whether they have ended."""
        end = time.monotonic() + seconds
        for thread in (self.locker, *self.performers):
            thread.join(max(0.0, end - time.monotonic()))
        ended = not any(thread.is_alive() for thread in (self.locker, *self.performers))
        if ended:
            if self.scheduler is not None and not self.scheduler.leave():
                say(logging.WARNING, "scheduler_abandoned")
            if self.maintenance is not None and not self.maintenance.leave():
                say(logging.WARNING, "maintenance_abandoned")
            self.watchdog.stop()
            self.condition.leave()
            self.booted.place.leave()
        return ended

    def abandon(self) -> list[str]:
        """The deadline has passed: clear the notes of what still runs (it is no failure of theirs); their ids."""
        jobs = [*self.locker.book.jobs]
        left, classes = [str(job.id) for job in jobs], sorted({job.row["job_class"] for job in jobs})
        done = threading.Event()
        self.locker.mail.put(Abandon(done))
        done.wait(0.5)
        self.watchdog.stop()
        self.condition.leave()
        say(logging.WARNING, "jobs_abandoned", job_ids=",".join(left), jobs=",".join(classes), count=len(left))
        return left

    def state(self) -> dict[str, Any]:
        """From another thread: what a supervisor wants to know; `connections` once it has booted."""
        return {**self.condition.live()[1], **self.condition.ready()[1], "connections": self._connections}

    def failed(self) -> bool:
        """Whether a part that cannot be healed has ended by itself."""
        return not self._stop.is_set() and bool(self._dead())

    def failure(self) -> MagikError:
        """What is to be said of that."""
        if isinstance(self.locker.failure, MagikError):
            return self.locker.failure
        return WorkerError("MAGIK_THREAD_DIED", f"{', '.join(self._dead())} ended unexpectedly.")

    def _announce(self) -> None:
        """By what settings it works: in the log before any job, which may be the end of the process."""
        say(logging.INFO, "ready", **in_force(self.booted), health=self.condition.address)
        if elsewhere := not_worked(self.booted):
            say(logging.WARNING, "queues_not_worked_here", **elsewhere)

    def _dead(self) -> list[str]:
        return [thread.name for thread in self._threads() if not thread.is_alive()]

    def _threads(self) -> list[threading.Thread]:
        others = [thread for thread in (self.scheduler, self.maintenance) if thread is not None]
        return [*self.performers, self.locker, self.watchdog, *others]


def _as_text(value: Any) -> Any:
    """SQLAlchemy's URL says its password only when it is asked to."""
    return value.render_as_string(hide_password=False) if isinstance(value, URL) else value


def _tuples(options: dict[str, Any]) -> dict[str, Any]:
    lists = {key: value for key, value in options.items() if isinstance(value, Sequence) and not isinstance(value, str)}
    return {**options, **{key: tuple(value) for key, value in lists.items()}}


def _assignment(booted: Booted) -> Assignment:
    told = booted.settings
    return Assignment(
        conninfo=booted.locking,
        schema=schema(),
        app_name=told.app_name,
        worker=f"{socket.gethostname()}:{os.getpid()}",
        queues=told.queues,
        known=tuple(booted.known),
        concurrency=told.concurrency,
        poll_interval=told.poll_interval.total_seconds(),
        database_timeout=told.database_timeout.total_seconds(),
        threads=booted.threads,
        pool=None if (given := room(booted.place.engine)) == UNLIMITED else given,
    )


def _upkeep(booted: Booted) -> Upkeep:
    told = booted.settings
    return Upkeep(booted.locking, told.app_name, duties(kept(), told.end_idle_transactions))


def not_worked(booted: Booted) -> dict[str, Any]:
    """Queues that the job classes name and this worker does not work: on purpose, or a forgotten --queue."""
    missing = {name: cls.__magik__.queue for name, cls in booted.known.items()}
    missing = {name: queue for name, queue in missing.items() if queue not in booted.settings.queues}
    return {"queues": ",".join(sorted(set(missing.values()))), "jobs": ",".join(sorted(missing))} if missing else {}


def connections(booted: Booted) -> int:
    """So many does it make at most."""
    return booted.threads + CONSTANT + booted.settings.maintenance


def in_force(booted: Booted) -> dict[str, Any]:
    """What a worker works with, for its first log line; the password is masked."""
    told, pool = booted.settings, booted.place.engine.pool
    return {
        "pid": os.getpid(),
        "database": booted.shown_url,
        "schema": schema() or "search_path",
        "queues": ",".join(told.queues),
        "concurrency": told.concurrency,
        "pool": getattr(pool, "size", lambda: None)(),  # None: a pool without a size
        "connections": connections(booted),
        "jobs": ",".join(sorted(booted.known)),
        "schedules": "; ".join(map(str, booted.timetable.values())) or None,
        "policies": ",".join(sorted({cls.__magik__.policy or "" for cls in booted.known.values()})),
        "poll_interval_s": told.poll_interval.total_seconds(),
        "shutdown_timeout_s": told.shutdown_timeout.total_seconds(),
    }
