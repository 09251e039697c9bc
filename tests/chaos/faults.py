"""The faults of a plan, each at its time; and what was struck when, for the balance."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import psycopg

from .plan import Fault
from .record import now
from .stage import PROXIED, Slot, Stage

STEPS = (-7_200.0, -90.0, -1.5, 1.5, 90.0, 7_200.0)  # seconds by which a clock is wrong
SESSIONS = """
SELECT pid, application_name FROM pg_stat_activity
 WHERE datname = 'chaos' AND backend_type = 'client backend' AND pid <> pg_backend_pid()
   AND application_name LIKE %s ORDER BY backend_start, pid"""
READ_ONLY = "ALTER DATABASE chaos SET default_transaction_read_only = on"
WRITABLE = "ALTER DATABASE chaos RESET default_transaction_read_only"
END_ALL = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'chaos' AND pid <> pg_backend_pid()"

End = Callable[[], object]


@dataclass
class Struck:
    """A fault that happened, from `at` to `until` (seconds since 1970); `pids` of the workers that it struck."""

    kind: str
    at: float
    until: float
    pids: tuple[int, ...] = ()
    detail: str = ""


class Faults:
    """``for each of the plan: begin, and end when its time is up``; `struck` has what came of it."""

    def __init__(self, stage: Stage, plan: list[Fault]) -> None:
        self.stage, self.plan = stage, plan
        self.struck: list[Struck] = []
        self._ends: list[tuple[float, int, End, Struck]] = []
        self._numbers = itertools.count()
        self._spells = 0  # in which the server takes no writes

    def play(self, seconds: float) -> None:
        """Let all of it happen, for so long; at the end whatever lasts is ended."""
        start, due = time.monotonic(), list(self.plan)
        while (at := time.monotonic() - start) < seconds or due:
            while due and due[0].at <= at:
                self._begin(due.pop(0), start)
            while self._ends and self._ends[0][0] <= at:
                self._finish()
            self.stage.tend()
            time.sleep(0.01)
        while self._ends:
            self._finish()

    def _begin(self, fault: Fault, start: float) -> None:
        struck = Struck(fault.kind, now(), 0.0)
        end: End | None = getattr(self, f"do_{fault.kind}")(fault, struck)
        struck.until = now()
        self.struck.append(struck)
        if end is not None:
            struck.until = struck.at + fault.lasts
            until = time.monotonic() - start + fault.lasts
            heapq.heappush(self._ends, (until, next(self._numbers), end, struck))

    def _finish(self) -> None:
        _, _, end, struck = heapq.heappop(self._ends)
        end()
        struck.until = now()

    # ---- workers and producers

    def _slot(self, fault: Fault, struck: Struck) -> Slot:
        slot = self.stage.slots[fault.of(len(self.stage.slots))]
        struck.pids, struck.detail = (slot.worker.pid,), f"worker {slot.number}"
        return slot

    def do_kill(self, fault: Fault, struck: Struck) -> None:
        self._slot(fault, struck).signal(signal.SIGKILL)

    def do_term(self, fault: Fault, struck: Struck) -> None:
        self._slot(fault, struck).signal(signal.SIGTERM)

    def do_freeze(self, fault: Fault, struck: Struck) -> End:
        worker = self._slot(fault, struck).worker
        worker.stop()

        def thaw() -> None:
            with contextlib.suppress(ProcessLookupError):
                worker.cont()

        return thaw

    def do_producer(self, fault: Fault, struck: Struck) -> None:
        number = fault.of(len(self.stage.producers))
        struck.detail = f"producer {number}"
        self.stage.kill_producer(number)

    def do_clock(self, fault: Fault, struck: Struck) -> None:
        off = STEPS[fault.of(len(STEPS))]
        struck.detail = f"{off:+g} s"
        there = self.stage.clock.with_suffix(".new")
        there.write_text(str(off))
        there.replace(self.stage.clock)

    # ---- the server and the way to it

    def do_locker(self, fault: Fault, struck: Struck) -> None:
        self._terminate("% locker", fault, struck)

    def do_backend(self, fault: Fault, struck: Struck) -> None:
        self._terminate("%", fault, struck)

    def _terminate(self, pattern: str, fault: Fault, struck: Struck) -> None:
        with psycopg.connect(self.stage.cluster.dsn("chaos"), autocommit=True) as connection:
            found = connection.execute(SESSIONS, [pattern]).fetchall()
            if not found:
                struck.detail = "nobody was there"
                return
            pid, name = found[fault.of(len(found))]
            struck.detail = name.partition(" ")[2] or name
            struck.pids = tuple(
                slot.worker.pid for slot in self.stage.slots if name.startswith(f"{slot.worker.app_name} ")
            )
            connection.execute("SELECT pg_terminate_backend(%s)", [pid])

    def do_restart(self, fault: Fault, struck: Struck) -> None:
        self.stage.cluster.restart("immediate")

    def do_read_only(self, fault: Fault, struck: Struck) -> End:
        self._spell(1)
        return lambda: self._spell(-1)

    def _spell(self, more: int) -> None:
        """Spells may overlap. The setting is a session's from its beginning, so all are ended."""
        self._spells += more
        self.stage.cluster.execute(READ_ONLY if self._spells else WRITABLE)
        self.stage.cluster.execute(END_ALL)

    def do_silence(self, fault: Fault, struck: Struck) -> End:
        """For new connections too, or only for those that are open; at the end they go on, or are cut."""
        new, cut = fault.choice > 0.5, int(fault.choice * 10) % 2 == 0
        struck.pids = self._proxied()
        open_ones = self.stage.proxy.silence(new=new)
        struck.detail = f"{open_ones} connections{' and new ones' if new else ''}, then {'cut' if cut else 'mended'}"

        def mend() -> None:
            struck.pids += self._proxied()
            if cut:
                self.stage.proxy.cut()
            self.stage.proxy.resume()

        return mend

    def _proxied(self) -> tuple[int, ...]:
        return tuple(slot.worker.pid for slot in self.stage.slots if slot.number in PROXIED)

    def do_snapshot(self, fault: Fault, struck: Struck) -> End:
        stack = ExitStack()
        connection = psycopg.connect(self.stage.dsn, application_name="snapshot")
        stack.callback(connection.close)
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT count(*) FROM magik_jobs")
        return stack.close
