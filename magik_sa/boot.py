"""Boot proves that a worker can do what it promises, and names everything that stands against it at once."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from traceback import walk_tb
from types import FrameType

from sqlalchemy.orm import configure_mappers

from .database import check_server
from .display import harmless
from .errors import BootError, BootRefused, MagikError
from .failure import first_line
from .job import Job, declared
from .job_session import for_runs
from .sessions import Place, Sessions, check_sessions, find
from .settings import Settings
from .timetable import Entry, timetable
from .url import conninfo
from .verb import SYSTEM, verbs


@dataclass(frozen=True)
class Booted:
    """What a worker runs on: proven to work together."""

    settings: Settings
    place: Place
    locking: str  # libpq connection string, password included: never shown
    shown_url: str
    known: dict[str, type[Job]]
    timetable: dict[str, Entry]
    threads: int  # that need a connection each: those of the jobs, and the scheduler's where there are schedules


def boot(settings: Settings, sessions: Sessions | None = None) -> Booted:
    """Import, check, connect, check. Raises `BootRefused` with every fault that was found."""
    findings = [*import_modules(settings.modules), *check_mappers()] or [*check_jobs()]
    entries = timetable(declared())
    threads = settings.concurrency + bool(entries)
    place, locking = None, ""
    try:
        place = find(settings, sessions, threads)
        findings += check_sessions(place, threads)
        locking = conninfo(settings.locking_url or place.engine.url)
        findings += check_server(locking, place.engine, settings, threads)
    except MagikError as error:
        findings.append(error)
    if place is None or findings:
        if place is not None:
            place.leave()
        raise BootRefused(findings)
    place = place._replace(sessions=for_runs(place.sessions))
    return Booted(settings, place, locking, place.engine.url.render_as_string(), declared(), entries, threads)


def import_modules(modules: tuple[str, ...]) -> Iterator[MagikError]:
    """Import the application's job modules; the working folder counts, as with ``python -m``."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    for name in modules:
        try:
            importlib.import_module(name)
        except MagikError as error:
            yield placed(error, name)
        except BaseException as error:  # a module may raise anything, SystemExit included
            yield BootError(
                "MAGIK_MODULE_IMPORT_FAILED", f"Importing {name!r} failed: {first_line(error)}.", field="modules"
            )


def placed(error: MagikError, module: str) -> MagikError:
    """The same error, told with where the application made it: the innermost line that is the application's own."""
    ours = [(frame, line) for frame, line in walk_tb(error.__traceback__) if not _is_library(frame)]
    if ours and not isinstance(error, BootRefused):
        frame, line = ours[-1]
        where = f"{frame.f_globals.get('__name__', module)} ({frame.f_code.co_filename}:{line})"
        error.what = f"In {harmless(where)}: {error.what}"
        error.args = (error.code, error.what)
    return error


def _is_library(frame: FrameType) -> bool:
    """By the module's name: code that dataclasses and the like write has no file."""
    root = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return root in ("magik_sa", "sqlalchemy", "pydantic", "_frozen_importlib") or root in sys.stdlib_module_names


def check_mappers() -> Iterator[MagikError]:
    """The application's mapped classes fit together; otherwise every job would fail at its first touch."""
    try:
        configure_mappers()
    except Exception as error:
        fault = f"The mapped classes do not fit together: {first_line(error)}."
        yield BootError("MAGIK_MODULE_IMPORT_FAILED", fault, field="modules")


def check_jobs() -> Iterator[MagikError]:
    """There are jobs, each says under which policy it runs, and no two share a row of the schedules."""
    jobs = declared()
    if not jobs:
        yield BootError("MAGIK_NO_JOBS", "No job class was declared by the imported modules.", field="modules")
    yield from filter(None, map(policy_fault, jobs.values()))
    yield from check_schedules(jobs)


def check_schedules(jobs: dict[str, type[Job]]) -> Iterator[MagikError]:
    """No two schedules have one row, which a ":" in the name of a class could make of different names."""
    rows: dict[str, str] = {}
    for name, cls in jobs.items():
        for schedule in cls.__magik__.schedules:
            row = schedule.row(name)
            if (other := rows.setdefault(row, name)) != name:
                what = f"{row!r} would be the row of a schedule of {other!r} and of one of {name!r}."
                yield BootError("MAGIK_SCHEDULE_NAME_TAKEN", what, field="name")


def policy_fault(cls: type[Job]) -> BootError | None:
    """What keeps a worker from starting with this class: it says nothing of who may have its jobs run."""
    name, verb = cls.__magik__.name, cls.__magik__.policy
    if verb is None:
        return BootError("MAGIK_POLICY_UNDECLARED", f"The job {name} names no policy.", field=name)
    if verb != SYSTEM and verb not in verbs:
        fault = f"The job {name} names the policy {verb!r}, which nobody defines."
        return BootError("MAGIK_POLICY_UNKNOWN", fault, field=name)
    return None
