"""The tools of the process tests do what they say: each fault is first shown not to be there."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.engine import make_url

from tests.tools import effects as effects_module
from tests.tools import keeper as keeper_module
from tests.tools import pooler, sessions
from tests.tools.cluster import Cluster, Mode, ServerFailed, debian, embedded, server_version
from tests.tools.effects import Effects, effect
from tests.tools.proxy import Proxy
from tests.tools.server import Server
from tests.tools.waiting import NotInTime, never, until
from tests.tools.workers import ROOT, WorkerDied, WorkerProcess, dsn_of, spelt

# ---- databases ----------------------------------------------------------------------------------------------


def test_each_test_has_a_database_of_its_own_as_a_plain_role(engine: Engine, database: str) -> None:
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT current_database()")) == make_url(database).database
        assert connection.scalar(text("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")) is False


def test_a_superuser_reaches_the_same_database(superuser_dsn: str, dsn: str) -> None:
    query = "SELECT current_database()"
    with psycopg.connect(superuser_dsn) as admin, psycopg.connect(dsn) as plain:
        assert admin.execute(query).fetchone() == plain.execute(query).fetchone()


def test_a_created_database_is_gone_even_with_somebody_connected(server: Server) -> None:
    with server.created() as name:
        engine = create_engine(server.url(name))
        engine.connect().close()
    engine.dispose()
    assert server.execute(f"SELECT count(*) FROM pg_database WHERE datname = '{name}'") == [(0,)]


def test_the_database_belongs_to_the_plain_role(dsn: str, database: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA app")
        name = make_url(database).database
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on".encode())
    with psycopg.connect(dsn) as connection, pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        connection.execute("CREATE TABLE refused ()")


# ---- waiting ------------------------------------------------------------------------------------------------


def test_until_returns_what_the_predicate_found() -> None:
    answers = iter([None, 0, "", "found"])
    assert until(lambda: next(answers), timeout=5) == "found"


def test_until_asks_at_least_once_and_raises_at_the_timeout() -> None:
    assert until(lambda: True, timeout=0) is True
    with pytest.raises(NotInTime, match="rain"):
        until(lambda: False, timeout=0.05, what="rain")


def test_never_holds_and_tells_what_happened() -> None:
    never(lambda: False, during=0.05)
    with pytest.raises(AssertionError, match="snow"):
        never(lambda: True, during=1, what="snow")


# ---- clusters -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "binaries",
    [
        pytest.param(embedded(), id="embedded"),
        pytest.param(
            debian(15),
            id="debian15",
            marks=pytest.mark.skipif(debian(15) is None, reason="Debian's PostgreSQL 15 is not installed"),
        ),
    ],
)
def test_a_cluster_starts_restarts_and_leaves_nothing(binaries: Path) -> None:
    with Cluster(binaries, {"work_mem": "7MB"}) as cluster:
        assert cluster.execute("SHOW server_version_num")[0][0].startswith(str(server_version(binaries)))
        assert cluster.execute("SHOW work_mem") == [("7MB",)]
        assert cluster.execute("SHOW fsync") == [("off",)]
        cluster.execute("CREATE TABLE kept AS SELECT 1 AS one")
        port, pid = cluster.port, cluster.process.pid if cluster.process else 0
        cluster.restart("immediate", work_mem="8MB")
        assert cluster.port == port
        assert cluster.execute("SHOW work_mem") == [("8MB",)]
        assert cluster.execute("SELECT one FROM kept") == [(1,)]
        with psycopg.connect(cluster.dsn(tcp=False)) as connection:
            assert connection.info.host == str(cluster.folder)
    assert not cluster.folder.exists()
    assert not cluster.running
    assert not keeper_module.alive(pid)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs servers as somebody else")
def test_programs_in_a_closed_folder_are_copied_for_the_user_that_runs_them(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    package = embedded().parents[1]
    for name in (package.name, f"{package.name}.libs"):
        shutil.copytree(package.parent / name, closed / name, symlinks=True)
    with Cluster(closed / package.name / "pginstall" / "bin") as cluster:
        assert cluster.binaries.is_relative_to(cluster.folder)
        assert cluster.execute("SELECT 1") == [(1,)]
    assert closed.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_stopped_server_refuses_until_it_is_started(spare: Cluster, mode: Mode) -> None:
    spare.stop(mode)
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(spare.dsn())
    spare.start()
    assert spare.execute("SELECT 1") == [(1,)]


def test_a_killed_server_recovers_what_was_committed(spare: Cluster) -> None:
    spare.execute("CREATE TABLE committed AS SELECT 1 AS one")
    spare.kill()
    spare.start()
    assert spare.execute("SELECT one FROM committed") == [(1,)]
    assert "was not properly shut down" in spare.read_log()


def test_a_killed_server_leaves_no_shared_memory() -> None:
    with Cluster() as cluster:
        segment = (cluster.data / "postmaster.pid").read_text().splitlines()[6].split()[1]
        assert segment in segments()
        cluster.kill()
    assert segment not in segments()


def segments() -> set[str]:
    """Ids of this machine's System V shared memory."""
    return {line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}


def test_a_server_that_cannot_start_says_why() -> None:
    with pytest.raises(ServerFailed, match="no_such_setting"):
        Cluster(settings={"no_such_setting": "1"}).__enter__()


def test_a_taken_port_is_exchanged_for_a_free_one() -> None:
    cluster = Cluster()
    with socket.create_server(("127.0.0.1", cluster.port)) as other, cluster:
        assert cluster.port != other.getsockname()[1]
        assert cluster.execute("SELECT 1") == [(1,)]


def test_a_server_that_was_up_waits_for_its_port_as_others_know_it() -> None:
    with Cluster() as cluster:
        port = cluster.port
        cluster.stop()
        with socket.create_server((cluster.host, port)) as other:
            frees = threading.Timer(1, other.close)
            frees.start()
            cluster.start()
        frees.join()
        assert cluster.port == port


@pytest.fixture(scope="module")
def spare() -> Iterator[Cluster]:
    """A cluster that a test may stop and start."""
    with Cluster() as cluster:
        yield cluster


# ---- the keeper ---------------------------------------------------------------------------------------------

ORPHANS = """
import subprocess, sys
from tests.tools.cluster import Cluster
from tests.tools.keeper import keeper
cluster = Cluster().__enter__()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
keeper.note("group", child.pid)
print(cluster.folder, cluster.process.pid, child.pid, flush=True)
sys.stdin.read()  # until the test is over, should nobody kill us
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_run_leaves_no_server_no_process_and_no_folder(number: signal.Signals) -> None:
    pipe = subprocess.PIPE
    run = subprocess.Popen([sys.executable, "-c", ORPHANS], cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
    with run:
        assert run.stdout is not None
        folder, *running = run.stdout.readline().split()
        assert all(keeper_module.alive(int(pid)) for pid in running)
        run.send_signal(number)
    until(lambda: not any(keeper_module.alive(int(pid)) for pid in running), 20, what="processes gone")
    until(lambda: not Path(folder).exists(), 20, what="folder gone")


# ---- effects ------------------------------------------------------------------------------------------------


class Marker:
    """Stands for a job: all that is asked of one is its id."""

    def __init__(self) -> None:
        self.id = uuid4()


@pytest.fixture
def recording(database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let this process record effects as a worker does."""
    monkeypatch.setenv("MAGIK_DATABASE_URL", database)
    yield
    effects_module.forget()


def test_an_effect_has_a_start_and_an_end(effects: Effects, recording: None) -> None:
    job = Marker()
    with effect(job, "first"):
        assert effects.rows()[0].ended is None
    (row,) = effects.starts(job.id)
    assert (row.cls, row.note, row.pid) == ("Marker", "first", os.getpid())
    assert row.ended is not None
    assert row.started <= row.ended
    assert (effects.count(), effects.finished(), effects.count("Other")) == (1, 1, 0)


def test_an_effect_stays_when_the_body_raises_and_has_no_end(effects: Effects, recording: None) -> None:
    with pytest.raises(ZeroDivisionError), effect(Marker()):
        raise ZeroDivisionError
    assert (effects.count(), effects.finished()) == (1, 0)


def test_repeats_are_found(effects: Effects, recording: None) -> None:
    once, twice = Marker(), Marker()
    for job in (once, twice, twice):
        effects_module.record(job)
    assert effects.repeats() == [(twice.id, 2)]
    assert effects.overlaps() == []


def test_overlaps_are_found_of_one_job_and_of_a_class(effects: Effects, recording: None) -> None:
    one, other = Marker(), Marker()
    with effect(one), effect(other):
        assert effects.overlaps() == []
        assert effects.overlaps(same_job=False) == [(one.id, other.id)]
    with effect(one), effect(one):
        pass
    assert effects.overlaps() == [(one.id, one.id)]


def test_a_forked_child_records_on_a_connection_of_its_own(effects: Effects, recording: None, dsn: str) -> None:
    """Were it killed in the middle, its parent would take the answer to it for one of its own."""
    effects_module.record(Marker())
    ours, childs = socket.socketpair()
    with ours, childs:
        if not (child := os.fork()):
            ours.close()  # so that this ends with the test
            effects_module.record(Marker())
            childs.sendall(b".")
            childs.recv(1)
            os._exit(0)
        assert ours.recv(1) == b"."
        assert len(sessions.pids(dsn, "effects")) == 2
        ours.sendall(b".")
        assert os.waitpid(child, 0)[1] == 0
    effects_module.record(Marker())
    assert effects.count() == 3


def test_recording_goes_on_after_its_connection_was_ended(effects: Effects, recording: None, dsn: str) -> None:
    effects_module.record(Marker())
    assert len(sessions.terminate(dsn, "effects")) == 1
    until(lambda: not sessions.pids(dsn, "effects"))
    effects_module.record(Marker())
    assert effects.count() == 2


# ---- sessions -----------------------------------------------------------------------------------------------


@pytest.fixture
def busy(dsn: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """A session with a name, a table lock and three advisory locks."""
    with psycopg.connect(dsn, autocommit=True) as setup:
        setup.execute("CREATE TABLE held ()")
    connection = psycopg.connect(dsn, application_name="busy one")
    connection.execute("LOCK TABLE held IN ROW SHARE MODE")
    connection.execute("SELECT pg_advisory_lock(1), pg_advisory_lock(2), pg_advisory_lock(3, 4)")
    yield connection
    connection.close()


def test_advisory_locks_are_counted_by_the_form_of_their_key(busy: object, dsn: str) -> None:
    assert sessions.advisory_locks(dsn) == {sessions.ONE_KEY: 2, sessions.TWO_KEYS: 1}
    assert sessions.advisory_locks(dsn, "busy%") == {sessions.ONE_KEY: 2, sessions.TWO_KEYS: 1}
    assert sessions.advisory_locks(dsn, "idle%") == {sessions.ONE_KEY: 0, sessions.TWO_KEYS: 0}


@pytest.mark.parametrize(
    "by",
    [{"application_name": "busy one"}, {"query": "%pg_advisory_lock%"}, {"lock": "held"}, {"lock": "advisory"}],
    ids=str,
)
def test_a_session_is_ended_by_name_query_or_lock(
    busy: psycopg.Connection[tuple[object, ...]], dsn: str, by: dict[str, str]
) -> None:
    assert sessions.pids(dsn, "nobody") == []
    assert sessions.terminate(dsn, **by) == [busy.info.backend_pid]
    with pytest.raises(psycopg.OperationalError):
        busy.execute("SELECT 1")
    until(lambda: not sessions.pids(dsn, "busy one"))


# ---- the proxy ----------------------------------------------------------------------------------------------


@pytest.fixture
def proxy(database: str) -> Iterator[Proxy]:
    """A proxy before the test's server."""
    url = make_url(database)
    with Proxy(url.host or "127.0.0.1", url.port or 5432) as proxy:
        yield proxy


def through(proxy: Proxy, database: str, patience: int = 20) -> psycopg.Connection[tuple[object, ...]]:
    """A connection to the database by way of the proxy."""
    url = make_url(database).set(host="127.0.0.1", port=proxy.port)
    return psycopg.connect(dsn_of(url.render_as_string(hide_password=False)), autocommit=True, connect_timeout=patience)


def test_the_proxy_passes(proxy: Proxy, database: str) -> None:
    with through(proxy, database) as connection:
        row = connection.execute("SELECT repeat('x', 1000000)").fetchone()
        assert row == ("x" * 1_000_000,)
        assert proxy.open == 1
    until(lambda: proxy.open == 0)


def test_a_cut_ends_what_is_open_and_new_connections_pass(proxy: Proxy, database: str, dsn: str) -> None:
    with through(proxy, database) as connection:
        backend = connection.info.backend_pid
        assert proxy.cut() == 1
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    until(lambda: backend not in sessions.pids(dsn))
    with through(proxy, database) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_refusing_leaves_open_connections_alone_and_ends_on_the_same_port(proxy: Proxy, database: str) -> None:
    port = proxy.port
    with through(proxy, database) as connection:
        proxy.refuse()
        with pytest.raises(psycopg.OperationalError, match="refused"):
            through(proxy, database)
        assert connection.execute("SELECT 1").fetchone() == (1,)
        proxy.accept()
        assert proxy.port == port
        through(proxy, database).close()


def test_who_was_let_in_and_not_led_on_when_it_was_refused_is_cut_too(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_in, refused, connect = threading.Event(), threading.Event(), socket.create_connection

    def late(*where: Any, **how: Any) -> socket.socket:
        let_in.set()
        refused.wait(20)
        return connect(*where, **how)

    monkeypatch.setattr(socket, "create_connection", late)
    with connect(("127.0.0.1", proxy.port), timeout=20) as client:
        assert let_in.wait(20)
        proxy.refuse()
        assert proxy.cut() == 0
        refused.set()
        assert client.recv(1) == b""


def answer(connection: psycopg.Connection[tuple[object, ...]]) -> tuple[threading.Thread, list[object]]:
    """Ask for something in a thread; the list gets the answer when there is one."""
    answers: list[object] = []
    asking = threading.Thread(target=lambda: answers.extend(connection.execute("SELECT 1").fetchall()), daemon=True)
    asking.start()
    return asking, answers


def test_silence_answers_nothing_closes_nothing_and_ends(proxy: Proxy, database: str) -> None:
    with through(proxy, database) as connection, through(proxy, database) as leaving:
        assert proxy.silence() == 2
        asking, answers = answer(connection)
        leaving.close()
        never(lambda: answers or proxy.open != 2, during=0.3)
        with through(proxy, database) as fresh:  # new connections pass
            assert fresh.execute("SELECT 1").fetchone() == (1,)
        proxy.resume()
        asking.join(5)
        assert answers == [(1,)]
        until(lambda: proxy.open == 1, what="the end that was held back arrives")


def test_silence_can_cover_new_connections(proxy: Proxy, database: str) -> None:
    proxy.silence(new=True)
    with pytest.raises(psycopg.errors.ConnectionTimeout):
        through(proxy, database, patience=2)
    proxy.resume()
    through(proxy, database).close()


def test_a_delay_is_felt_both_ways(proxy: Proxy, database: str) -> None:
    with through(proxy, database) as connection:
        proxy.delay(0.1)
        began = time.monotonic()
        connection.execute("SELECT 1")
        assert time.monotonic() - began >= 0.2


# ---- the pooler ---------------------------------------------------------------------------------------------


def backends(url: str, *, transactions: int) -> set[int]:
    """The server sessions that one client meets while another one is in a transaction."""
    with psycopg.connect(dsn_of(url), prepare_threshold=None, autocommit=True) as client:
        seen = set()
        for _ in range(transactions):
            row = client.execute("SELECT pg_backend_pid()").fetchone()
            assert row is not None
            seen.add(int(row[0]))
            other = psycopg.connect(dsn_of(url), prepare_threshold=None)
            other.execute("SELECT 1")  # takes the server session that was given back just now, and keeps it
            row = client.execute("SELECT pg_backend_pid()").fetchone()
            assert row is not None
            seen.add(int(row[0]))
            other.close()
    return seen


@pooler.needed
def test_a_pooler_in_session_mode_keeps_the_session(database: str) -> None:
    with pooler.Pooler(database, "session") as between:
        assert between.url != database
        assert len(backends(between.url, transactions=3)) == 1


@pooler.needed
def test_a_pooler_in_transaction_mode_does_not(database: str) -> None:
    with pooler.Pooler(database, "transaction") as between:
        assert len(backends(between.url, transactions=3)) > 1


@pooler.needed
def test_a_pooler_in_statement_mode_refuses_transactions(database: str) -> None:
    with pooler.Pooler(database, "statement") as between, psycopg.connect(dsn_of(between.url)) as client:
        with pytest.raises(psycopg.Error, match="transaction blocks not allowed"):
            client.execute("SELECT 1")
        client.close()


@pooler.needed
def test_a_pooler_leaves_nothing(database: str) -> None:
    with pooler.Pooler(database, "session") as between:
        pass
    assert not between.folder.exists()
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(dsn_of(between.url))


# ---- worker processes ---------------------------------------------------------------------------------------

LISTENER = """
import os, signal, sys, psycopg
from tests.tools.workers import dsn_of
name = sys.argv[sys.argv.index("--app-name") + 1]
connection = psycopg.connect(dsn_of(os.environ["MAGIK_DATABASE_URL"]), autocommit=True)
connection.execute("SELECT set_config('application_name', %s, false)", [name + " locker"])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
connection.execute("LISTEN bell")
print("event=ready", file=sys.stderr, flush=True)
print("arguments", *sys.argv[1:], flush=True)
while True:
    signal.pause()
"""


def listener(database: str, **options: object) -> WorkerProcess:
    """A process that looks like a worker from outside."""
    return WorkerProcess(database, program=("-c", LISTENER), **options)  # type: ignore[arg-type]


def test_options_are_spelt_as_the_command_line_has_them() -> None:
    assert spelt({"shutdown_timeout": "2s", "queue": ["a", "b"], "once": True, "quiet": False, "x": None}) == (
        ["--shutdown-timeout", "2s", "--queue", "a", "--queue", "b", "--once"]
    )


def test_a_worker_is_ready_and_ends_on_a_signal(database: str) -> None:
    with listener(database, concurrency=3) as worker:
        worker.wait_ready()
        assert "event=ready" in worker.stderr()
        until(lambda: "--concurrency 3" in worker.stdout())
        assert worker.terminate() == 0
    assert worker.returncode == 0
    assert "arguments" in worker.stdout()


def test_a_worker_that_dies_before_it_is_ready_says_why(database: str) -> None:
    with WorkerProcess(database, program=("-c", "raise SystemExit('no such thing')")) as worker:
        with pytest.raises(WorkerDied, match="no such thing"):
            worker.wait_ready()
        assert worker.wait() == 1


def test_a_frozen_worker_does_not_answer_and_a_thawed_one_does(database: str, dsn: str) -> None:
    with listener(database) as worker:
        worker.wait_ready().stop()
        until(lambda: Path(f"/proc/{worker.pid}/stat").read_text().split()[2] == "T")
        worker.signal(signal.SIGTERM)
        never(lambda: worker.returncode is not None, during=0.2)
        assert sessions.pids(dsn, f"{worker.app_name} locker")
        worker.cont()
        assert worker.wait() == 0


LAST_WORDS = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)\nsys.exit('the last words')"


def test_what_a_worker_says_last_is_found(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends right after a look that found nothing."""
    read = WorkerProcess.stderr
    command = [sys.executable, "-c", LAST_WORDS, str(tmp_path / "gate")]
    with WorkerProcess(database, command=command) as worker:

        def look(self: WorkerProcess) -> str:
            found = read(self)
            (tmp_path / "gate").touch()
            assert worker.process.wait(30) == 1
            return found

        monkeypatch.setattr(WorkerProcess, "stderr", look)
        assert worker.wait_log("the last words").group() == "the last words"


FAMILY = """
import subprocess, sys, time
sleep = "import time; time.sleep(600)"
print(subprocess.Popen([sys.executable, "-c", sleep]).pid, flush=True)
exec(sleep)
"""


def test_leaving_the_block_kills_the_whole_group(database: str) -> None:
    with WorkerProcess(database, program=("-c", FAMILY)) as worker:
        child = int(until(worker.stdout))
        assert keeper_module.alive(child)
    assert worker.returncode == -signal.SIGKILL
    until(lambda: not keeper_module.alive(child))


def test_a_worker_sees_no_settings_of_ours_but_those_it_is_given(
    database: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MAGIK_CONCURRENCY", "77")
    monkeypatch.setenv("PGHOST", "nowhere.invalid")
    (tmp_path / "told.py").write_text(
        "import os; print({k: v for k, v in os.environ.items() if k.startswith(('MAGIK_', 'PG'))})"
    )
    with WorkerProcess(database, program=("-m", "told"), path=tmp_path, env={"MAGIK_QUEUES": "a"}) as worker:
        assert worker.wait() == 0
        assert set(re.findall(r"'(MAGIK_\w+|PG\w+)'", worker.stdout())) == {"MAGIK_DATABASE_URL", "MAGIK_QUEUES"}


def test_a_log_line_is_awaited(database: str) -> None:
    program = ("-c", "import sys, time; print('event=claimed n=3', file=sys.stderr, flush=True); time.sleep(600)")
    with WorkerProcess(database, program=program) as worker:
        assert worker.wait_log(r"event=claimed n=(\d+)")[1] == "3"
        with pytest.raises(NotInTime, match="event=never"):
            worker.wait_log("event=never", timeout=0.1)
