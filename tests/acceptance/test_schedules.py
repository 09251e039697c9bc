"""Schedules in running workers: one job a tick, whatever the workers, the clocks, the server and the schedules do."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, make_url
from sqlalchemy.orm import Session as OrmSession

from tests.controls import control
from tests.jobs.lasting import Lasting
from tests.jobs.ticking import BY_NAME
from tests.tools.cluster import Cluster
from tests.tools.effects import Effects
from tests.tools.proxy import Proxy
from tests.tools.schema import migrate
from tests.tools.server import Server
from tests.tools.sessions import terminate
from tests.tools.waiting import never, until
from tests.tools.workers import WorkerProcess, dsn_of

TICKING, ALIKE, LASTING = "tests.jobs.ticking", "tests.jobs.alike", "tests.jobs.lasting"
PROGRAM = ("-m", "magik_sa.worker")
Start = Callable[..., WorkerProcess]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Ends with the test what is entered into it."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def start(database: str, stack: ExitStack) -> Start:
    """Starts a worker whose schedules are those that its environment declares."""

    def start(*modules: str, url: str = database, wait: bool = True, concurrency: int = 4, **options: Any) -> Any:
        env = {name: str(value) for name, value in options.pop("env", {}).items()}
        worker = WorkerProcess(url, *(modules or (TICKING,)), concurrency=concurrency, env=env, **options)
        stack.enter_context(worker)
        return worker.wait_ready() if wait else worker

    return start


def one(connection: psycopg.Connection[Any], statement: str) -> Any:
    row = connection.execute(statement.encode()).fetchone()
    return row and row[0]


def due(connection: psycopg.Connection[Any], where: str = "true", by: str = "0 s") -> int:
    """Move the next tick of some schedules so far into the past; how many they were."""
    moved = f"UPDATE magik_job_schedules SET next_run_at = now() - interval '{by}' WHERE {where}"
    return connection.execute(moved.encode()).rowcount


def fired(*workers: WorkerProcess) -> list[str]:
    """The schedules that these workers say they have fired, one for each time."""
    return [name.strip('"') for worker in workers for name in fields(worker, "schedule_fired", "schedule")]


def expect_fired(worker: WorkerProcess, *names: str) -> None:
    """It has fired these, once each. It says so after the commit: the job may have run by then."""
    until(lambda: len(fired(worker)) >= len(names), what="it says so")
    assert sorted(fired(worker)) == [*names]


def fields(worker: WorkerProcess, event: str, name: str) -> list[str]:
    return re.findall(rf'event={event}\b.*? {name}=("[^"]*"|\S+)', worker.stderr())


ALL_IN_THE_FUTURE = "SELECT bool_and(next_run_at > now()) FROM magik_job_schedules"


# ---- one job a tick


def test_two_hundred_schedules_due_at_once_make_one_job_each_in_five_seconds(
    app: psycopg.Connection[Any], start: Start, effects: Effects
) -> None:
    """Three workers, one of them killed in the middle of it; some of the schedules fail."""
    workers = [start(env={"TICKING": 200, "FAILING": 1}, wait=False) for _ in range(3)]
    for worker in workers:
        worker.wait_ready()
    moved = one(app, "SELECT clock_timestamp()")
    assert due(app) == 200 + len(BY_NAME)
    until(lambda: one(app, "SELECT count(*) FROM magik_job_schedules WHERE last_run_at IS NOT NULL") > 20)
    workers[0].kill()
    run = "SELECT count(DISTINCT note) FROM effects"
    until(lambda: one(app, run) == 200, every=0.1, what="every schedule's job has run")
    made = Counter(note for note, _ in {(row.note, row.job_id) for row in effects.rows()})
    assert made == {str(number): 1 for number in range(200)}
    last = max(row.started for row in effects.rows())
    fires = one(app, "SELECT max(last_run_at) FROM magik_job_schedules")
    took = [(moment - moved).total_seconds() for moment in (fires, last)]
    print("200 schedules, the last fired after {:.2f} s, its job started after {:.2f} s".format(*took))
    assert (last - moved).total_seconds() < 5
    assert one(app, "SELECT count(*) FROM magik_job_schedules WHERE next_run_at <= now()") == len(BY_NAME)
    until(lambda: any(fired(worker) for worker in workers[1:]), what="others say so")


def test_without_the_tick_in_the_claim_two_workers_fire_it_twice(app: psycopg.Connection[Any], start: Start) -> None:
    """The control of the test above. Nobody works the jobs' queue, so that all of them are there to be counted."""
    told: dict[str, Any] = {"env": {"TICKING": 200}, "queue": ["other"], "program": control("without_the_tick")}
    for worker in [start(wait=False, **told) for _ in range(2)]:
        worker.wait_ready()

    def twice() -> bool:
        app.execute("TRUNCATE magik_jobs")
        due(app)
        until(lambda: one(app, ALL_IN_THE_FUTURE), 20, what="all have fired")
        return bool(one(app, "SELECT count(*) > 200 FROM magik_jobs"))

    until(twice, 30, what="a tick that made two jobs")


def test_schedules_with_names_that_look_alike_all_fire(
    app: psycopg.Connection[Any], start: Start, effects: Effects
) -> None:
    worker = start(ALIKE)
    assert due(app) == 5
    until(lambda: effects.count() == 5, what="all have run")
    expect_fired(worker, "A", "A:_b", "a:_B", "a:_b", "a_:b")
    assert Counter(row.note for row in effects.rows()) == {"A": 2, "a": 2, "a_": 1}


def test_two_schedules_that_would_share_a_row_are_refused_at_boot(start: Start, tmp_path: Path) -> None:
    source = """
from magik_sa import Job, Schedule

class One(Job, policy="system", name="a"):
    schedule = Schedule(every="1h", name="b")
    def perform(self, session): ...

class Two(Job, policy="system", name="a:b"):
    schedule = Schedule(every="1h")
    def perform(self, session): ...
"""
    (tmp_path / "clashing.py").write_text(source, "utf-8")
    worker = start("clashing", path=tmp_path, wait=False)
    assert worker.wait() == 2
    assert "MAGIK_SCHEDULE_NAME_TAKEN: 'a:b'" in worker.stderr()


def test_two_schedules_of_one_class_make_jobs_with_their_own_arguments(
    app: psycopg.Connection[Any], start: Start, effects: Effects
) -> None:
    start(env={"TICKING": 2})
    due(app)
    until(lambda: sorted(row.note or "" for row in effects.rows()) == ["0", "1"])


def test_a_schedule_makes_any_number_of_jobs_and_repeats_of_live_ones_are_left_out(
    app: psycopg.Connection[Any], start: Start, effects: Effects
) -> None:
    app.execute("CREATE TABLE tenants AS SELECT generate_series(1, 20) AS number")
    worker = start(env={"TICKING": 0, "FANNING": 1}, queue=["other"])  # nobody works the jobs' own queue
    for tick in (1, 2):
        due(app)
        until(lambda tick=tick: len(fired(worker)) == tick, what="it has fired")  # type: ignore[misc]
    made = app.execute("SELECT job_class, count(*) FROM magik_jobs GROUP BY 1 ORDER BY 1").fetchall()
    assert made == [("Fanned", 20), ("Fanning", 2)]
    assert fields(worker, "schedule_fired", "count") == ["21", "21"]


def test_a_worker_says_its_schedules_and_has_a_connection_for_them(app: psycopg.Connection[Any], start: Start) -> None:
    worker = start(env={"TICKING": 2, "TICKING_EVERY": "90s", "CRON": 1}, concurrency=3)
    worker.wait_log("event=ready")
    assert fields(worker, "ready", "schedules") == [
        '"Ticking:n0: 1m30s; Ticking:n1: 1m30s; FiveMinutely: */5 * * * * UTC"'
    ]
    assert [fields(worker, "ready", name) for name in ("concurrency", "pool", "connections")] == [["3"], ["4"], ["5"]]
    ours = f"SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE '{worker.app_name} %'"
    until(lambda: one(app, ours) == 5, what="one a thread, the scheduler's, and one for the locks")


# ---- missed, moved, paused


def test_a_clock_that_jumps_makes_one_late_job_and_no_load(
    server: Server, template: str, start: Start, stack: ExitStack
) -> None:
    """The worker was frozen while its next tick was moved two hours, back on one database and ahead on another."""
    runs = {}
    urls = [server.url(stack.enter_context(server.created(template))) for _ in range(2)]
    workers = [start(url=url, env={"TICKING_EVERY": "1m"}, wait=False) for url in urls]
    for by, url, worker in zip(("-2 h", "2 h"), urls, workers, strict=True):
        worker.wait_ready().wait_log("event=ready")
        worker.stop()
        app = stack.enter_context(psycopg.connect(dsn_of(url), autocommit=True))
        app.execute(f"UPDATE magik_job_schedules SET next_run_at = now() + interval '{by}'".encode())
        runs[by] = (worker, app, Effects(url), len(worker.stderr().splitlines()), cpu(worker))
    for worker, *_ in runs.values():
        worker.cont()
    began = time.monotonic()
    until(lambda: runs["-2 h"][2].count(), what="the late one")
    never(lambda: not all(run[0].returncode is None for run in runs.values()), during=5.0)
    for by, (worker, app, effects, lines, before) in runs.items():
        said, used = len(worker.stderr().splitlines()) - lines, (cpu(worker) - before) / (time.monotonic() - began)
        print(f"{by}: {said} lines, {used:.1%} of a processor")
        assert (effects.count(), one(app, ALL_IN_THE_FUTURE)) == (1 if by == "-2 h" else 0, True)
        assert said < 20
        assert used < 0.10


def cpu(worker: WorkerProcess) -> float:
    """The seconds of a processor that it has used."""
    words = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / 100


def test_a_tick_that_is_moved_is_noticed_within_a_second_and_starts_on_time(
    app: psycopg.Connection[Any], start: Start, effects: Effects
) -> None:
    start()
    for _ in range(3):
        effects.clear()
        move = "UPDATE magik_job_schedules SET next_run_at = now() + interval '1500 ms' RETURNING next_run_at"
        tick = one(app, move)
        (effect,) = until(effects.rows, what="it has run")
        late = (effect.started - tick).total_seconds()
        print(f"started {late * 1000:.0f} ms after its tick")
        assert 0 <= late < 1


def test_a_pause_lasts_and_what_was_missed_in_it_is_not_made_up_for(
    app: psycopg.Connection[Any], start: Start, effects: Effects, database: str, stack: ExitStack
) -> None:
    from magik_sa import recurring

    engine = create_engine(database)
    stack.callback(engine.dispose)
    start()
    with engine.begin() as connection:
        assert recurring.pause(connection, "Ticking:n0", "ada")
        assert not recurring.pause(connection, "Ticking:n0", "ada")
    due(app, by="150 min")
    never(effects.count, during=1.5)
    tick = one(app, "SELECT next_run_at FROM magik_job_schedules")
    with OrmSession(engine) as session, session.begin():
        assert recurring.resume(session, "Ticking:n0")
        assert not recurring.resume(session, "Ticking:n0")
    resumed = "SELECT next_run_at - %s, next_run_at > now(), paused_at, paused_by FROM magik_job_schedules"
    assert app.execute(resumed, [tick]).fetchone() == (timedelta(hours=3), True, None, None)
    never(effects.count, during=1.2)
    due(app)
    until(lambda: effects.count() == 1, what="the first tick after the pause")


# ---- declarations


def test_during_a_deploy_only_the_newer_declaration_fires(
    app: psycopg.Connection[Any], start: Start, effects: Effects
) -> None:
    declared = "SELECT declaration->>'every' FROM magik_job_schedules"
    old = start(env={"TICKING_EVERY": "1h"})
    assert one(app, declared) == "1h"
    app.execute("UPDATE magik_job_schedules SET last_run_at = '2020-01-01', paused_by = 'ada'")
    new = start(env={"TICKING_EVERY": "2h"})
    assert one(app, declared) == "2h"
    assert one(app, "SELECT next_run_at > now() + interval '110 min' FROM magik_job_schedules")
    assert one(app, "SELECT last_run_at = '2020-01-01' AND paused_by = 'ada' FROM magik_job_schedules")
    due(app)
    until(lambda: effects.count() == 1, what="it has run")
    expect_fired(new, "Ticking:n0")
    assert fired(old) == []
    new.terminate()
    due(app)
    never(lambda: effects.count() > 1, during=2.5)
    assert one(app, declared) == "2h"
    late = start(env={"TICKING_EVERY": "2h"})
    until(lambda: effects.count() == 2, what="the tick that nobody was there for")
    expect_fired(late, "Ticking:n0")
    assert fired(old) == []


def impatient(settings: str) -> tuple[str, ...]:
    """A worker with shorter pauses in its scheduler."""
    return "-c", f"from magik_sa.worker import rest, scheduler; {settings}; from tests.controls import work; work()"


IMPATIENT = impatient("scheduler.STRANGE_EVERY, scheduler.NOBODYS_AFTER = 0.3, 2.0")


def test_a_declaration_that_nobody_runs_any_more_is_put_back(
    app: psycopg.Connection[Any], start: Start, effects: Effects
) -> None:
    """The newer release was taken back. The time that an old worker waits for a newer one is shortened here."""
    old = start(env={"TICKING_EVERY": "1h"}, program=IMPATIENT)
    new = start(env={"TICKING_EVERY": "2h"})
    old.wait_log("event=schedules_declared_otherwise schedules=Ticking:n0")
    new.terminate()
    never(lambda: "schedule_adopted" in old.stderr(), during=1.2)  # it is not due
    due(app)
    until(lambda: effects.count() == 1, 20, what="its tick fires")
    assert "event=schedule_adopted schedule=Ticking:n0" in old.stderr()
    expect_fired(old, "Ticking:n0")
    assert one(app, "SELECT declaration->>'every' FROM magik_job_schedules") == "1h"


def test_a_declaration_whose_schedule_fails_is_not_put_back(app: psycopg.Connection[Any], start: Start) -> None:
    """Each try of the newer release is rolled back and leaves its row as it was, due all the while."""
    failing = {"TICKING": 0, "FAILING": "raises"}
    waits = impatient("scheduler.STRANGE_EVERY, scheduler.NOBODYS_AFTER = 0.3, 5.0")
    old = start(env={**failing, "FAILING_EVERY": "1h"}, program=waits)
    often = impatient("scheduler.LOOK_EVERY, rest.FIRST_REST, rest.LONGEST_REST = 0.2, 0.5, 0.5")
    new = start(env={**failing, "FAILING_EVERY": "2h"}, program=often)
    old.wait_log("event=schedules_declared_otherwise")
    due(app)
    tries = "event=schedule_failed"  # two in a second at most
    until(lambda: new.stderr().count(tries) > 12, 60, what="tries for longer than the old one waits")
    assert "event=schedule_adopted" not in old.stderr()
    new.kill()
    old.wait_log("event=schedule_adopted schedule=Stumbling:raises", 20)


def test_rows_of_removed_declarations_go_and_rows_of_classes_unknown_here_stay(
    app: psycopg.Connection[Any], start: Start
) -> None:
    def names() -> set[str]:
        return {name for (name,) in app.execute("SELECT name FROM magik_job_schedules")}

    theirs = {"A", "A:_b", "a:_B", "a:_b", "a_:b"}
    for worker in (start(ALIKE, wait=False), start(env={"TICKING": 2, "CRON": 1}, wait=False)):
        worker.wait_ready().terminate()
    assert names() == theirs | {"FiveMinutely", "Ticking:n0", "Ticking:n1"}
    start(env={"TICKING": 1}).terminate()
    assert names() == theirs | {"Ticking:n0"}
    last = start(env={"TICKING": 0})  # a worker without any schedule takes away what its classes had
    assert "schedules=" not in last.stderr()
    assert names() == theirs


# ---- schedules that fail, hang, or are slow


def test_schedules_that_fail_hurt_no_other_and_fire_once_they_are_mended(
    app: psycopg.Connection[Any], start: Start, effects: Effects
) -> None:
    worker = start(env={"FAILING": 1})
    began = time.monotonic()
    assert due(app, by="3 h") == len(BY_NAME) + 1
    until(lambda: effects.count() == 1, what="the one that does not fail")
    until(lambda: set(fields(worker, "schedule_failed", "schedule")) == {f"Stumbling:{name}" for name in BY_NAME})

    def too_often() -> bool:
        """The rests are 1 s, 2 s, 4 s, so that the third try comes after 3 s, the fourth after 7 s."""
        most = max(Counter(fields(worker, "schedule_failed", "schedule")).values())
        return bool(2 ** (most - 1) - 1 > time.monotonic() - began)

    never(too_often, during=3.0)
    assert one(app, "SELECT count(*) FROM magik_job_schedules WHERE next_run_at <= now()") == len(BY_NAME)
    assert effects.count() == 1  # nothing of what they had added
    lines = [line for line in worker.stderr().splitlines() if "schedule_failed" in line]
    by_kind = {name: next(line for line in lines if f"Stumbling:{name}" in line) for name in BY_NAME}
    assert re.search(r"error=ValueError where=\S*ticking.py:\d+ next_try_s=1.0", by_kind["raises"])
    for kind in ("commits", "rolls_back", "closes", "yields_a_number", "gives_nothing", "gives_a_class"):
        assert "error=MAGIK_ON_SCHEDULE_INVALID" in by_kind[kind]
    assert not re.search("s3cret|Traceback", worker.stderr())
    app.execute("CREATE TABLE mended ()")
    until(lambda: effects.count("Stumbling") == len(BY_NAME), 30, what="one late job each")
    assert one(app, ALL_IN_THE_FUTURE)
    assert worker.terminate() == 0


def test_a_slow_schedule_holds_up_no_other_where_a_second_worker_is(
    app: psycopg.Connection[Any], start: Start, effects: Effects
) -> None:
    for _ in range(2):
        start(env={"TICKING": 20, "SLOW": 1, "SLOW_IN": "lock"})
    app.execute("SELECT pg_advisory_lock(0, 0)")
    due(app)
    until(lambda: effects.count("Ticking") == 20, what="the others have run")
    assert effects.count("Slow") == 0
    app.execute("SELECT pg_advisory_unlock(0, 0)")
    until(lambda: effects.count("Slow") == 1, what="the slow one, once")
    assert one(app, ALL_IN_THE_FUTURE)


@pytest.mark.parametrize("where", ["python", "sql"])
def test_a_hanging_schedule_does_not_hold_up_the_end_and_its_tick_stays_due(
    app: psycopg.Connection[Any], start: Start, dsn: str, where: str
) -> None:
    patient = impatient("scheduler.LEAVE = 3")  # not to be abandoned in the moment in which it is cut off
    program = patient if where == "sql" else PROGRAM
    worker = start(env={"TICKING": 0, "SLOW": 60, "SLOW_IN": where}, program=program)
    due(app)
    slow = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'slow'"
    until(lambda: one(app, slow), what="it hangs")
    assert worker.terminate(timeout=20) == 0, "its limit of 30 s would end it"
    assert ("event=schedule_cut_off" if where == "sql" else "event=scheduler_abandoned") in worker.stderr()
    until(lambda: one(app, slow) == 0, what="the server has rolled it back")
    assert one(app, "SELECT next_run_at <= now() FROM magik_job_schedules")


@pytest.mark.parametrize("where", ["python", "sql"])
def test_a_hanging_schedule_is_interrupted_at_the_timeout_of_its_class(
    app: psycopg.Connection[Any], start: Start, effects: Effects, where: str
) -> None:
    worker = start(env={"SLOW": 60, "SLOW_IN": where, "SLOW_LIMIT": "1s"})
    due(app)
    until(lambda: fields(worker, "schedule_failed", "error") == ["MAGIK_JOB_TIMEOUT"], what="its limit")
    assert fields(worker, "schedule_failed", "next_try_s") == ["10.0"]  # it held the others up for a second
    if where == "python":
        assert re.search(r"ticking.py:\d+$", fields(worker, "schedule_failed", "where")[0])
    until(lambda: effects.count("Ticking") == 1, what="the other one")
    assert one(app, "SELECT next_run_at <= now() FROM magik_job_schedules WHERE name = 'Slow'")
    assert "Traceback" not in worker.stderr()
    assert worker.terminate() == 0


# ---- the database


def test_the_scheduler_goes_on_after_every_loss_of_its_connection(
    app: psycopg.Connection[Any], start: Start, effects: Effects, dsn: str
) -> None:
    worker = start()
    for n in range(1, 6):
        terminate(dsn, f"{worker.app_name} performer")
        due(app)
        until(lambda n=n: effects.count() == n, what="it has fired")  # type: ignore[misc]
    assert worker.terminate() == 0


def test_without_its_table_it_waits_with_growing_pauses_and_stops_in_the_middle_of_one(
    app: psycopg.Connection[Any], start: Start, effects: Effects
) -> None:
    stops = start(program=impatient("scheduler.FIRST_PAUSE, scheduler.LEAVE = 60, 20"))
    worker = start()
    app.execute("ALTER TABLE magik_job_schedules RENAME TO away")
    stops.wait_log(r"event=scheduler_interrupted .*UndefinedTable.* next_try_s=60")
    worker.wait_log(r"event=scheduler_interrupted .*UndefinedTable.* next_try_s=1.6")
    assert worker.stderr().count("scheduler_interrupted") < 8
    assert stops.terminate(timeout=15) == 0
    assert "scheduler_abandoned" not in stops.stderr()
    app.execute("ALTER TABLE away RENAME TO magik_job_schedules")
    due(app)
    until(lambda: effects.count() == 1, 30, what="it has fired")


def test_a_read_only_spell_is_waited_for(
    superuser_dsn: str, app: psycopg.Connection[Any], start: Start, effects: Effects, database: str
) -> None:
    name = make_url(database).database
    worker = start()
    with psycopg.connect(superuser_dsn, autocommit=True) as admin:

        def end_all() -> None:
            for sessions in (f"{worker.app_name}%", "effects"):
                terminate(superuser_dsn, sessions)

        due(app, by="-1 s")
        admin.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on'.encode())
        end_all()
        worker.wait_log("event=scheduler_interrupted .*(READ_ONLY|read-only)")
        never(lambda: worker.stderr().count("scheduler_interrupted") > 12, during=2.0, what="a hot loop")
        admin.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only'.encode())
        end_all()
        until(lambda: effects.count() == 1, 30, what="it has fired")
        worker.expect_alive()


def test_a_line_gone_silent_is_hung_up(
    app: psycopg.Connection[Any], start: Start, effects: Effects, database: str, stack: ExitStack
) -> None:
    """The socket stays open and keepalives are answered; only a limit of our own can tell. It is shortened here."""
    impatient = "from magik_sa.worker import scheduler; scheduler.SILENT_AFTER = 2; from tests.controls import work"
    url = make_url(database)
    proxy = stack.enter_context(Proxy(url.host or "", url.port or 0))
    proxied = url.set(port=proxy.port).render_as_string(hide_password=False)
    worker = start(url=proxied, env={"EFFECTS_URL": database}, program=("-c", f"{impatient}; work()"))
    proxy.silence()
    due(app)
    until(lambda: one(app, ALL_IN_THE_FUTURE), 20, what="it has fired")
    worker.wait_log("event=scheduler_silent")  # said by who has hung up, when the thread may have gone on
    proxy.resume()
    assert worker.terminate() == 0


def test_an_immediate_restart_of_the_server_loses_no_job_and_no_tick(stack: ExitStack, start: Start) -> None:
    cluster = stack.enter_context(Cluster())
    migrate(cluster.url())
    engine, effects = create_engine(cluster.url()), Effects(cluster.url())
    stack.callback(engine.dispose)
    workers = [start(TICKING, LASTING, url=cluster.url(), concurrency=5, env={"TICKING": 5}) for _ in range(2)]
    with OrmSession(engine) as session, session.begin():
        session.add_all([Lasting(seconds=0.05) for _ in range(200)])
    with psycopg.connect(cluster.dsn(), autocommit=True) as app:
        app.execute(
            "UPDATE magik_job_schedules SET next_run_at = now() + right(name, 1)::int * interval '300 ms'"
        )  # around the restart
        until(lambda: effects.count() > 30, what="they work")
    cluster.restart("immediate")
    engine.dispose()
    with psycopg.connect(cluster.dsn(), autocommit=True) as app:
        until(lambda: one(app, "SELECT count(*) FROM magik_jobs") == 0, 60, what="all jobs are done")
        until(lambda: one(app, ALL_IN_THE_FUTURE), 30, what="all schedules have fired")
        until(lambda: one(app, "SELECT count(*) FROM magik_jobs") == 0, 30, what="and their jobs are done")
    assert len({row.job_id for row in effects.rows("Lasting") if row.ended}) == 200
    assert Counter(note for note, _ in {(row.note, row.job_id) for row in effects.rows("Ticking")}) == {
        str(number): 1 for number in range(5)
    }
    for worker in workers:
        worker.expect_alive()


# ---- clocks


def libfaketime() -> Path | None:
    return next(iter(Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), None)


@pytest.mark.skipif(libfaketime() is None, reason="needs libfaketime to give each worker another clock")
def test_workers_whose_clocks_are_ten_minutes_off_make_one_job_a_tick(
    app: psycopg.Connection[Any], start: Start, effects: Effects
) -> None:
    workers = [
        start(
            env={
                "TICKING": 0,
                "CRON": 1,
                "FAKETIME": off,
                "FAKETIME_DONT_FAKE_MONOTONIC": 1,
                "LD_PRELOAD": libfaketime(),
            }
        )
        for off in ("+600s", "-600s")
    ]
    grid = "to_timestamp(floor(extract(epoch FROM now()) / 300) * 300)"
    began = one(app, f"SELECT {grid}")  # the five minutes may turn between two of the ticks below
    following = f"SELECT next_run_at = {grid} + interval '5 min' FROM magik_job_schedules"
    until(lambda: one(app, following), what="the first tick is of the database's clock")
    for n in range(1, 5):
        app.execute("UPDATE magik_job_schedules SET next_run_at = %s", [began - n * timedelta(minutes=5)])
        until(lambda: one(app, following), what="the next tick is of the database's clock")
    until(lambda: one(app, "SELECT count(*) FROM magik_jobs") == 0, what="all have run")

    def ticks() -> Counter[str]:
        return Counter(tick for worker in workers for tick in fields(worker, "schedule_fired", "tick"))

    until(lambda: len(ticks()) >= 4, what="they say so")
    assert set(ticks().values()) == {1}
    until(lambda: effects.count() == len(ticks()), 5, what="one job for each, also of one that is due just now")
    hours = {re.match(r"\S+ (\d\d:\d\d)", worker.stderr()).group(1) for worker in workers}  # type: ignore[union-attr]
    assert len(hours) == 2, "the clocks are not off"
    for worker in workers:  # what a killed process would leave behind
        for left in Path("/dev/shm").glob(f"*faketime*_{worker.pid}"):
            left.unlink()


CLOCK = """
CREATE SCHEMA clock;
CREATE TABLE clock.hands (at timestamptz);
INSERT INTO clock.hands VALUES (%(at)s);
CREATE FUNCTION clock.now() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT at FROM clock.hands';
"""


def test_in_the_hour_that_a_zone_repeats_nothing_is_due_an_hour_early(
    app: psycopg.Connection[Any], start: Start, effects: Effects, database: str
) -> None:
    """The database's now() is moved to the hour that London has twice, and everybody lives there."""
    name, second_half_past_one = make_url(database).database, "2026-10-25 01:30+00"
    app.execute(CLOCK.replace("%(at)s", "'2026-10-25 01:45+01'").encode())  # the first 01:45
    app.execute(f'ALTER DATABASE "{name}" SET search_path = clock, pg_catalog, public'.encode())
    app.execute(f"ALTER DATABASE \"{name}\" SET TimeZone = 'Europe/London'".encode())
    start(env={"TZ": "Europe/London"}, poll_interval="100ms")
    app.execute("UPDATE magik_job_schedules SET next_run_at = %s", [second_half_past_one])
    app.execute(
        "INSERT INTO magik_jobs (job_class, args, run_at) VALUES ('Ticking', '{\"number\": 7}', %s)",
        [second_half_past_one],
    )
    never(effects.count, during=2.0)
    app.execute("UPDATE clock.hands SET at = %s", [second_half_past_one])
    until(lambda: {row.note for row in effects.rows()} >= {"7"}, what="the job that was put off")
    tick = one(app, "SELECT next_run_at AT TIME ZONE 'UTC' FROM magik_job_schedules")
    until(lambda: one(app, "SELECT last_run_at FROM magik_job_schedules"), what="the schedule")
    tick = one(app, "SELECT next_run_at AT TIME ZONE 'UTC' FROM magik_job_schedules")
    assert str(tick) == "2026-10-25 02:30:00"
