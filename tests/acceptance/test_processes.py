"""Several processes under one supervisor: they share a queue, are replaced when they die, and end together."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session as OrmSession

from magik_sa.worker import child as children
from magik_sa.worker import seat as seats
from magik_sa.worker.child import Child
from magik_sa.worker.seat import Seat
from tests.acceptance.test_health import ask
from tests.controls import control
from tests.jobs.lasting import Lasting
from tests.jobs.ledger import Gate, GatedPosting, open_books
from tests.tools.clock import set_in
from tests.tools.effects import Effects
from tests.tools.events import faults
from tests.tools.keeper import alive
from tests.tools.waiting import never, until
from tests.tools.workers import WorkerProcess

LASTING = "tests.jobs.lasting"
DRAINED, REFUSED, DEADLINE, LOST = 0, 2, 3, 4
ENDED = r"event=process_ended pid={} {} next_try_s=(\d+\.\d+)"


@pytest.fixture
def add(engine: Engine) -> Callable[..., None]:
    """Adds jobs in a transaction of their own."""

    def add(*seconds: float) -> None:
        with OrmSession(engine) as session, session.begin():
            session.add_all([Lasting(seconds=each) for each in seconds])

    return add


@pytest.fixture
def start(database: str) -> Iterator[Callable[..., WorkerProcess]]:
    """Starts a supervisor, of two processes if nothing else is said."""
    with ExitStack() as stack:

        def start(*modules: str, **options: Any) -> WorkerProcess:
            options = {"processes": 2, "concurrency": 1, "poll_interval": "1s", **options}
            return stack.enter_context(WorkerProcess(database, *modules or (LASTING,), **options))

        yield start


def ready(worker: WorkerProcess, count: int = 2) -> list[int]:
    """The ids of the processes, when so many have been ready."""

    def pids() -> list[int]:
        worker.expect_alive()
        return [int(pid) for pid in re.findall(r"event=ready pid=(\d+)", worker.stderr())]

    until(lambda: len(pids()) >= count, 20, what=f"{count} are ready; {worker.stderr()}")
    return pids()


def stopped(worker: WorkerProcess, number: signal.Signals = signal.SIGTERM) -> None:
    """A signal to the supervisor alone."""
    os.kill(worker.pid, number)


def started(effects: Effects, count: int) -> set[int]:
    """So many jobs run or have run; the processes that they are in."""
    until(lambda: effects.count() >= count, what=f"{count} jobs run")
    return {row.pid for row in effects.rows()}


def both_drain(worker: WorkerProcess) -> list[str]:
    """The lines of processes that drain with a job in hand."""
    return re.findall(r"event=draining pid=\d+ running=1", worker.stderr())


def left(pids: list[int]) -> list[int]:
    return [pid for pid in pids if alive(pid)]


# ---- together


def test_two_processes_work_one_queue_and_drain_together(
    start: Callable[..., WorkerProcess], engine: Engine, effects: Effects
) -> None:
    """The number may stand in the environment; each has the flags of the interpreter, and no socket of another's."""
    open_books(engine)
    program = ["-u", "-X", "dev", "-W", "error::UserWarning", "-m", "magik_sa.worker"]
    worker = start("tests.jobs.ledger", program=program, processes=None, env={"MAGIK_PROCESSES": "2"})
    pids = ready(worker)
    with OrmSession(engine) as session, session.begin():
        session.add_all([GatedPosting(), GatedPosting()])
    assert started(effects, 2) == set(pids)
    assert worker.pid not in pids
    for pid in pids:
        words = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").replace("-X ", "-X").replace("-W ", "-W")
        assert {"-u", "-Xdev", "-Werror::UserWarning"} <= {*words.partition(" -m ")[0].split()}
    worker.signal(signal.SIGTERM)  # to the whole group, as systemd does
    until(lambda: len(both_drain(worker)) == 2, what="both drain")
    with OrmSession(engine) as session, session.begin():
        session.add(Gate(name="open"))
    assert worker.wait() == DRAINED
    assert (effects.finished(), left(pids), effects.repeats()) == (2, [], [])
    lines = worker.stderr().splitlines()
    assert sum(f"event=supervising pid={worker.pid} processes=2 connections=4" in line for line in lines) == 1
    assert sum("event=ready" in line and "connections=2" in line for line in lines) == 2
    assert sum("event=drained" in line for line in lines) == 2
    assert "process_ended" not in worker.stderr()


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_each_line_of_a_supervised_process_says_which_it_is(
    start: Callable[..., WorkerProcess], add: Callable[..., None], effects: Effects, log_format: str
) -> None:
    worker = start(log_format=log_format)
    told = r"event=ready pid=(\d+)" if log_format == "text" else r'"event": "ready", "pid": (\d+)'
    until(lambda: len(re.findall(told, worker.stderr())) == 2, 20, what="both are ready")
    add(0, 0.01)
    started(effects, 2)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == DRAINED
    pids = {*map(int, re.findall(told, worker.stderr()))}
    lines = [line for line in worker.stderr().splitlines() if "supervising" not in line]
    if log_format == "text":
        said = [(line, re.search(r"event=\w+ pid=(\d+)", line)) for line in lines]
        assert {int(found.group(1)) if found else line for line, found in said} == pids
    else:
        read = [*map(json.loads, lines)]
        assert [fault for line in read for fault in faults(line)] == []
        assert {line.get("pid", line["event"]) for line in read} == pids
    assert {"job_finished", "drained"} <= {*re.findall("job_finished|drained", worker.stderr())}


def test_one_process_has_no_supervisor(database: str) -> None:
    with WorkerProcess(database, LASTING, processes=1, env={"MAGIK_PROCESSES": "2"}) as worker:
        assert ready(worker.wait_ready(), 1) == [worker.pid]
        assert worker.terminate() == DRAINED
    assert "supervising" not in worker.stderr()


# ---- replaced

HELD = """
import os, time
from tests.jobs.lasting import Lasting
while os.path.exists({!r}):
    time.sleep(0.01)
"""


def test_the_jobs_of_a_process_that_is_killed_run_elsewhere_and_it_is_replaced(
    start: Callable[..., WorkerProcess], add: Callable[..., None], effects: Effects, tmp_path: Path
) -> None:
    """One port answers for all. At the end a job outlasts the shutdown timeout, in which the idle one ends."""
    hold = tmp_path / "hold"
    (tmp_path / "held.py").write_text(HELD.format(str(hold)))
    worker = start("held", path=tmp_path, health_port=0, shutdown_timeout="3s")
    port = int(worker.wait_log(r"event=supervising .* health=127\.0\.0\.1:(\d+)", 20).group(1))
    pids = ready(worker)
    until(lambda: ask(port, "/ready") == (200, {"ready": True, "why": None}), what="all are ready")
    assert ask(port, "/live") == (200, {"live": True, "processes": 2, "dead": []})
    add(60)
    (dead,) = started(effects, 1)
    hold.touch()  # so that the new process is seen as it starts, and the job runs in the other
    os.kill(dead, signal.SIGKILL)
    replaced = re.compile(r"a process is started again|process \d+: starting")
    until(lambda: replaced.fullmatch(ask(port, "/ready")[1]["why"] or ""), what="one is replaced")
    code, told = ask(port, "/live")
    assert (code, told["live"], told["dead"]) == (200, True, [])
    assert started(effects, 2) == {*pids}
    hold.unlink()
    pause = worker.wait_log(ENDED.format(dead, "signal=SIGKILL")).group(1)
    assert 0.8 <= float(pause) <= 1.2
    new = int(worker.wait_log(r"event=process_started pid=(\d+)").group(1))
    assert ready(worker, 3)[2] == new
    until(lambda: ask(port, "/ready")[0] == 200, what="all are ready again")
    assert left(pids) == [pid for pid in pids if pid != dead]
    stopped(worker)
    assert worker.wait() == DEADLINE
    assert left([*pids, new]) == []
    assert worker.stderr().count("event=drained") == 1
    assert re.search(r"event=process_ended pid=\d+ exit_code=3\n", worker.stderr())
    assert "health=" not in "".join(re.findall("event=ready .*", worker.stderr()))


def test_one_that_is_stopped_by_hand_is_replaced_and_tried_again_when_it_refuses_to_start(
    start: Callable[..., WorkerProcess], tmp_path: Path
) -> None:
    module = tmp_path / "released.py"
    module.write_text("from tests.jobs.lasting import Lasting\n")
    program = ["-m", "magik_sa.cli", "worker"]
    worker = start("released", path=tmp_path, program=program, env={"PYTHONDONTWRITEBYTECODE": "1"})
    (pid, _) = ready(worker)
    module.write_text("import no_such_thing\n")
    os.kill(pid, signal.SIGTERM)
    worker.wait_log(ENDED.format(pid, "exit_code=0"))
    worker.wait_log(r"(?m)^MAGIK_MODULE_IMPORT_FAILED: .*no_such_thing")
    pause = worker.wait_log(ENDED.format(r"\d+", "exit_code=2")).group(1)
    assert 1.6 <= float(pause) <= 2.4
    module.write_text("from tests.jobs.lasting import Lasting\n")
    ready(worker, 3)
    stopped(worker)
    assert worker.wait() == DRAINED


def test_pauses_grow_to_half_a_minute_and_are_short_again_after_a_good_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/program")
    seat = Seat([])
    pauses = [seat._rest(settled) for settled in [False] * 8 + [True, False]]
    for pause, middle in zip(pauses, [1, 2, 4, 8, 16, 30, 30, 30, 1, 2], strict=True):
        assert 0.8 * middle <= pause <= 1.2 * middle
    set_in(monkeypatch, seats)
    seat = Seat([])
    assert seat.tend() is None
    assert 'event=process_not_started error="FileNotFoundError: ' in caplog.text
    assert seat.child is None
    assert 0.8 <= seat.patience() <= 1.2


# ---- the end


def test_a_second_signal_is_3(start: Callable[..., WorkerProcess], add: Callable[..., None], effects: Effects) -> None:
    worker = start(shutdown_timeout="1h")
    ready(worker)
    add(60, 60)
    started(effects, 2)
    stopped(worker)
    until(lambda: len(both_drain(worker)) == 2, what="both drain")
    assert worker.returncode is None
    stopped(worker, signal.SIGINT)
    assert worker.wait() == DEADLINE
    assert "process_killed" not in worker.stderr(), "they heard of it"


def test_one_that_is_lost_while_it_drains_is_4(
    start: Callable[..., WorkerProcess], add: Callable[..., None], effects: Effects
) -> None:
    worker = start(shutdown_timeout="1h")
    ready(worker)
    add(60)
    (busy,) = started(effects, 1)
    stopped(worker)
    worker.wait_log("event=drained")
    os.kill(busy, signal.SIGKILL)
    assert worker.wait() == LOST
    assert f"event=process_ended pid={busy} signal=SIGKILL\n" in worker.stderr()


@pytest.mark.parametrize(
    ("end", "counts"),
    [
        ("sys.exit(1)", DRAINED),
        ("sys.exit(2)", DRAINED),
        ("sys.exit(3)", DEADLINE),
        ("sys.exit(4)", LOST),
        ("os.kill(os.getpid(), signal.SIGTERM)", DRAINED),
        ("os.kill(os.getpid(), signal.SIGKILL)", LOST),
    ],
)
def test_one_that_ends_before_it_has_said_anything_counts_by_how_it_ended(
    monkeypatch: pytest.MonkeyPatch, end: str, counts: int
) -> None:
    """What has been killed may have had jobs in hand, and was not asked yet whether it works."""
    monkeypatch.setattr(children, "program", lambda: [sys.executable, "-c", f"import os, signal, sys; {end}"])
    seat = Seat([])
    seat.tend()
    assert seat.child is not None
    assert not seat.child.booted
    codes: list[int | None] = []

    def ended() -> bool:
        codes.append(seat.leave())
        return codes[-1] is not None

    until(ended, what="it has ended")
    assert codes[-1] == counts


def test_what_does_not_end_in_its_time_is_killed(start: Callable[..., WorkerProcess]) -> None:
    """One is frozen, so that it can neither hear nor end."""
    hasty = "import runpy; from magik_sa.worker import supervisor; supervisor.GRACE = 0.3; "
    worker = start(
        program=["-c", hasty + "runpy.run_module('magik_sa.worker', run_name='__main__', alter_sys=True)"],
        shutdown_timeout="100ms",
    )
    pids = ready(worker)
    os.kill(pids[0], signal.SIGSTOP)
    stopped(worker)
    assert worker.wait() == DEADLINE
    assert f"event=process_killed pid={pids[0]}\n" in worker.stderr()
    assert left(pids) == []


def test_ctrl_c_is_one_signal_though_all_have_it(
    start: Callable[..., WorkerProcess], add: Callable[..., None], effects: Effects
) -> None:
    worker = start()
    ready(worker)
    add(1)
    started(effects, 1)
    worker.signal(signal.SIGINT)
    assert worker.wait() == DRAINED
    assert effects.finished() == 1


UNASKED = """
import runpy
from magik_sa.worker.child import Child

children, ask = [], Child._ask

def ask_the_first(self):
    children.append(self)
    if self is children[0]:
        ask(self)
    else:
        self._asked_at = 1.0  # as if it had been, and had not answered

Child._ask = ask_the_first
runpy.run_module("magik_sa.worker", run_name="__main__", alter_sys=True)
"""


def test_ctrl_c_is_one_signal_for_one_that_has_not_answered_yet(
    start: Callable[..., WorkerProcess], add: Callable[..., None], effects: Effects
) -> None:
    """The supervisor of a busy machine may not have heard of it when it has jobs already."""
    worker = start(program=["-c", UNASKED])
    ready(worker)
    add(1, 1)
    started(effects, 2)
    worker.signal(signal.SIGINT)
    assert worker.wait() == DRAINED
    assert effects.finished() == 2


def test_without_the_two_ways_a_signal_to_the_group_is_a_second_one(
    start: Callable[..., WorkerProcess], add: Callable[..., None], effects: Effects
) -> None:
    """The control of the test above."""
    worker = start(program=control("without_the_two_ways"))
    ready(worker)
    add(60, 60)
    started(effects, 2)
    worker.signal(signal.SIGINT)
    assert worker.wait() == DEADLINE


# ---- the start


def test_what_keeps_them_from_starting_is_said_once(start: Callable[..., WorkerProcess]) -> None:
    worker = start("nowhere", processes=3)
    assert worker.wait() == REFUSED
    (line,) = worker.stderr().splitlines()
    assert line.startswith("MAGIK_MODULE_IMPORT_FAILED: ")


def test_what_is_wrong_with_an_option_or_the_port_is_said_by_the_supervisor(
    start: Callable[..., WorkerProcess],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for wrong, code in [
            ({"poll_interval": "soon"}, "SETTING_INVALID"),
            ({"health_port": port}, "HEALTH_UNAVAILABLE"),
        ]:
            worker = start("nowhere", **wrong)
            assert worker.wait() == REFUSED
            (line,) = worker.stderr().splitlines()
            assert line.startswith(f"MAGIK_{code}: ")


@pytest.mark.parametrize("group", [False, True])
def test_a_signal_while_they_start_ends_them(start: Callable[..., WorkerProcess], tmp_path: Path, group: bool) -> None:
    (tmp_path / "endless.py").write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)\n")
    worker = start("endless", path=tmp_path)
    pid = int(until(worker.stdout, 20, what="the import has begun"))
    worker.signal(signal.SIGTERM) if group else stopped(worker)
    assert worker.wait() == DRAINED
    assert left([pid]) == []
    assert worker.stderr().count("before the worker was ready") == 1


# ---- without a supervisor


def test_processes_whose_supervisor_is_killed_drain(
    start: Callable[..., WorkerProcess], add: Callable[..., None], effects: Effects
) -> None:
    worker = start()
    pids = ready(worker)
    add(1)
    started(effects, 1)
    stopped(worker, signal.SIGKILL)
    until(lambda: not left(pids), 20, what="they have ended")
    assert effects.finished() == 1
    assert worker.stderr().count("event=drained") == 2


def test_without_the_tie_they_go_on_for_ever(start: Callable[..., WorkerProcess]) -> None:
    """The control of the test above."""
    worker = start(program=control("without_the_tie"))
    pids = ready(worker)
    stopped(worker, signal.SIGKILL)
    worker.wait()
    never(lambda: "draining" in worker.stderr(), 1)
    assert left(pids) == pids


# ---- health


def test_a_process_that_does_not_answer_is_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, database: str
) -> None:
    monkeypatch.setattr(children, "SILENT", 0.3)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    (tmp_path / "endless.py").write_text("import time\ntime.sleep(60)\n")
    child = Child(["--", "endless"])
    child.start()
    now = set_in(monkeypatch, children)

    def talked() -> bool:
        now.now += 0.1
        child.converse()
        return bool(child.said)

    until(talked, 20, what="it answers")
    assert not child.silent()
    os.kill(child.pid, signal.SIGSTOP)
    until(lambda: talked() and child.silent(), what="it does not answer")
    os.kill(child.pid, signal.SIGCONT)
    until(lambda: talked() and not child.silent(), what="it answers again")
    child.stop()
    until(lambda: child.ended() is not None, what="it has ended")
    assert child.ended() == DRAINED
