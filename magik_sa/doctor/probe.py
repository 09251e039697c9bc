"""What threads are worth here: for jobs that wait for the database, and for jobs that compute."""

from __future__ import annotations

import sys
import sysconfig
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Barrier
from typing import Any, Final

import psycopg

from .. import server
from ..asking import Unanswered
from ..failure import first_line
from .finding import Finding, Severity

QUERY: Final = 1.0  # seconds of one query
LOOPS: Final = 1_000_000  # of pure Python: some hundredths of a second
LATE: Final = 1.5  # seconds within which queries that overlap are all done, with a second to spare for each 40 threads

SERIAL: Final = "The driver does not let other threads run while it waits for the server, or the server is overloaded."
DRIVER: Final = "Install psycopg's C or binary implementation (psycopg[binary]); look at the load of both machines."


def probe(place: str, threads: int) -> list[Finding]:
    """Both figures, by so many threads. `place` is a way to the database as libpq reads it."""
    return [_asked(place, threads), computing(threads)]


def _asked(place: str, threads: int) -> Finding:
    try:
        return asking(place, threads)
    except psycopg.Error as error:
        why = Unanswered(f"{threads} connections could not be used: {first_line(error)}")
        return Finding("queries_overlap", Severity.UNKNOWN, f"unknown: {why}")


def asking(place: str, threads: int) -> Finding:
    """So many threads each run a query of one second on a connection of their own. Raises `psycopg.Error`."""
    with ExitStack() as stack:
        connections = [stack.enter_context(_connect(place)) for _ in range(threads)]
        took, _ = _together(threads, lambda n: connections[n].execute("SELECT pg_sleep(%s)", [QUERY]))
    measured = {"threads": threads, "seconds": round(took, 3), "one_after_the_other": threads * QUERY}
    said = f"{threads} queries of {QUERY:.0f} s on {threads} connections took {took:.2f} s"
    if threads > 1 and took > min(LATE + threads / 40, QUERY * threads):
        return Finding("queries_overlap", Severity.WARNING, f"{said}: they did not overlap", measured, SERIAL, DRIVER)
    said += ": they overlap, a job that waits for the database costs others nothing"
    return Finding("queries_overlap", Severity.OK, said, measured)


def computing(threads: int) -> Finding:
    """So many threads of pure Python beside one of them: what a job that computes costs the others."""
    alone = min(_together(1, _compute)[0] for _ in range(3))
    took, used = _together(threads, _compute)
    measured = {"threads": threads, "alone_seconds": round(alone, 3), "seconds": round(took, 3)}
    measured |= {"times": round(took / alone, 2), "cores": round(used / took, 2), "gil": _gil()}
    said = (
        f"{threads} threads of pure Python took {took / alone:.1f} times as long as one: this interpreter"
        f" ({sys.implementation.name} {sys.version.split()[0]}{'' if _gil() else ', free-threaded'}) gives them"
        f" {used / took:.1f} cores together; for jobs that compute, run more workers rather than more threads"
    )
    return Finding("computing", Severity.OK, said, measured)


def _connect(place: str) -> psycopg.Connection[Any]:
    return psycopg.connect(place, autocommit=True, prepare_threshold=None, **server.CLIENT)


def _together(threads: int, work: Callable[[int], object]) -> tuple[float, float]:
    """The time from the start of all to the end of the last, and what they used of processors in it."""
    ready = Barrier(threads + 1)

    def run(n: int) -> None:
        ready.wait()
        work(n)

    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(run, n) for n in range(threads)]
        ready.wait()
        start, used = time.monotonic(), time.process_time()
        for future in futures:
            future.result()
        return time.monotonic() - start, time.process_time() - used


def _compute(_: int) -> None:
    value = 0
    for n in range(LOOPS):
        value ^= n


def _gil() -> bool:
    """Whether one lock is between the threads; a build without it may run with it."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: not sysconfig.get_config_var("Py_GIL_DISABLED"))())
