"""Boot proves that a worker can do what it promises, and names everything that stands against it at once."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import Final

from sqlalchemy.orm import configure_mappers

from .database import check_server
from .errors import BootError, BootRefused, MagikError
from .failure import first_line
from .harmless import harmless, word
from .job import Job, declared
from .job_session import for_runs
from .sessions import Place, Sessions, check_sessions, find
from .settings import Settings
from .timetable import Entry, timetable
from .url import conninfo, shown
from .verb import SYSTEM, verbs

INSTALLED: Final = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True)
class Booted:
    """What a worker runs on: proven to work together."""

    settings: Settings
    place: Place = field(repr=False)  # of an application's engine the URL may hold a password as a word of its query
    locking: str = field(repr=False)  # libpq connection string, password included: never shown
    shown_url: str
    known: dict[str, type[Job]]
    timetable: dict[str, Entry]
    threads: int  # that need a connection each: those of the jobs, and the scheduler's where there are schedules


def boot(
    settings: Settings,
    sessions: Sessions | None = None,
    imported: Callable[[], None] = lambda: None,
    known: Iterable[MagikError] = (),
) -> Booted:
    """Import, check, connect, check. Raises `BootRefused` with every fault that was found, and those that are `known`.

    `imported` is called when the application's code has been imported, and before anything is waited for.
    """
    findings = [*check_code(settings), *known]
    entries = timetable(declared())
    threads = settings.concurrency + bool(entries)
    place, locking = None, ""
    try:
        place = find(settings, sessions, threads)
        imported()
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
    return Booted(settings, place, locking, shown(place.engine.url), declared(), entries, threads)


def check_code(settings: Settings) -> list[MagikError]:
    """What needs no database: the modules and their classes. What these declare counts only when all are imported."""
    return [*import_modules(settings.modules), *check_mappers()] or [
        *check_jobs(settings.modules),
        *check_queues(settings.queues),
    ]


def import_modules(modules: tuple[str, ...]) -> Iterator[MagikError]:
    """Import the application's job modules; the working folder counts, as with ``python -m``."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    for name in modules:
        if "://" in name:  # a URL without its --database-url: not repeated, as it may hold a password
            yield BootError("MAGIK_MODULE_IMPORT_FAILED", "A URL is no name of a module.", field="modules")
            continue
        try:
            importlib.import_module(name)
        except MagikError as error:
            yield placed(error, name)
        except BaseException as error:  # a module may raise anything, SystemExit included
            what = f"Importing {name!r} failed: {first_line(error)}{_where(error, name)}."
            yield BootError("MAGIK_MODULE_IMPORT_FAILED", what, field="modules", remedy=_remedy(error, name))


def _remedy(error: BaseException, module: str) -> str | None:
    """Where it was looked for, if it is the module itself that was not found, and not one that it imports."""
    absent = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
    if not absent and "/" not in module:
        return None
    path = Path(module.removesuffix(".py"))
    dotted = module if path.is_absolute() else ".".join(path.parts)
    named = "" if dotted == module else f"Name it as Python does: {dotted}. "
    place = f"It was looked for below the working folder, {Path.cwd()}, and on PYTHONPATH"
    return harmless(f"{named}{place}: start where it is, or name that folder in PYTHONPATH.")


def placed(error: MagikError, module: str) -> MagikError:
    """The same error, told with where the application made it: the innermost line that is the application's own."""
    where = _place(error, module)
    if where and not isinstance(error, BootRefused):
        error.what = f"In {where}: {error.what}"
        error.args = (error.code, error.what)
    return error


def _place(error: BaseException, module: str) -> str | None:
    ours = [(frame, line) for frame, line in walk_tb(error.__traceback__) if not _is_library(frame)]
    if not ours:
        return None
    beside = [each for each in ours if INSTALLED.isdisjoint(Path(each[0].f_code.co_filename).parts)]
    frame, line = (beside or ours)[-1]  # the application itself may be installed
    return harmless(f"{frame.f_globals.get('__name__', module)} ({frame.f_code.co_filename}:{line})")


def _where(error: BaseException, module: str) -> str:
    """As in: , in shop.jobs (/app/shop/jobs.py:7). Of a syntax error the place stands in it."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return harmless(f", in {error.filename}:{error.lineno}")
    return f", in {place}" if (place := _place(error, module)) else ""


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


def check_jobs(modules: tuple[str, ...] = ()) -> Iterator[MagikError]:
    """There are jobs, each says under which policy it runs, and no two share a row of the schedules."""
    jobs = declared()
    if not jobs:
        where = f"in {', '.join(modules)}" if modules else "as no module was named"
        yield BootError("MAGIK_NO_JOBS", f"No job class was declared {where}.", field="modules")
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


def check_queues(worked: tuple[str, ...]) -> Iterator[MagikError]:
    """No queue is worked whose name is a list of others': the environment is written so, and --queue is repeated."""
    named = {cls.__magik__.queue for cls in declared().values()}
    for queue in set(worked) - named:
        parts = [part.strip() for part in queue.split(",")]
        if len(parts) > 1 and named & set(parts):
            meant = " ".join(f"--queue {word(part)}" for part in parts)
            yield BootError(
                "MAGIK_SETTING_INVALID", f"{queue!r} is no queue: did you mean {harmless(meant)}?", field="queues"
            )


def policy_fault(cls: type[Job]) -> BootError | None:
    """What keeps a worker from starting with this class: it says nothing of who may have its jobs run."""
    name, verb = cls.__magik__.name, cls.__magik__.policy
    if verb is None:
        return BootError("MAGIK_POLICY_UNDECLARED", f"The job {name} names no policy.", field=name)
    if verb != SYSTEM and verb not in verbs:
        fault = f"The job {name} names the policy {verb!r}, which nobody defines."
        return BootError("MAGIK_POLICY_UNKNOWN", fault, field=name)
    return None
