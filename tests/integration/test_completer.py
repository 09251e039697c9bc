"""Jobs that wrote nothing, and end together."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session as OrmSession
from sqlalchemy.orm import scoped_session, sessionmaker

from magik_sa import Job, around, names
from magik_sa.claim import Busy, Claimed, Claims
from magik_sa.completing import complete
from magik_sa.job import declared
from magik_sa.job_session import Run, for_runs
from magik_sa.one_exchange import OneExchange
from magik_sa.outcome import Outcome
from magik_sa.routing import Registry
from magik_sa.run import run
from magik_sa.server import connect_locking
from magik_sa.wake import register
from magik_sa.worker import completer
from magik_sa.worker.completer import AGAIN_AFTER, LONGEST_PAUSE, Completer
from magik_sa.worker.letters import Ended
from tests.jobs.idle_hands import WAYS, Alone, Joining, Noting, OfAKey, Touched, Untouched, UntouchedKept
from tests.jobs.tables import Customer, Pigeon, make
from tests.tools.clock import Clock, set_in
from tests.tools.waiting import until

# One row for each DELETE, with what it deleted.
COUNTED = """
CREATE TABLE deletes (n int);
CREATE FUNCTION counted() RETURNS trigger LANGUAGE plpgsql AS $$
  BEGIN INSERT INTO deletes SELECT count(*) FROM old; RETURN NULL; END $$;
CREATE TRIGGER counted AFTER DELETE ON magik_jobs REFERENCING OLD TABLE AS old
  FOR EACH STATEMENT EXECUTE FUNCTION counted()"""

TRIGGER = """
CREATE FUNCTION kept() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {does}; RETURN NULL; END $$;
CREATE TRIGGER kept BEFORE {at} ON magik_jobs FOR EACH ROW WHEN (old.priority = 7) EXECUTE FUNCTION kept()"""
REFERENCED = """
CREATE TABLE kept AS SELECT id FROM magik_jobs WHERE priority = 7;
ALTER TABLE kept ADD FOREIGN KEY (id) REFERENCES magik_jobs"""

# What keeps a row of priority 7.
STANDS = {
    "a foreign key": REFERENCED,
    "a trigger": TRIGGER.format(at="DELETE", does="RAISE 'kept'"),
    "a trigger with a fault of its own": TRIGGER.format(at="DELETE", does="PERFORM 1 / 0"),
    "a trigger with a code of its own": TRIGGER.format(at="DELETE", does="RAISE 'kept' USING ERRCODE = 'MY001'"),
    "a trigger that does not reach another server": TRIGGER.format(
        at="DELETE", does="RAISE 'kept' USING ERRCODE = '08001'"
    ),
    "a trigger that says nothing": TRIGGER.format(at="DELETE", does="NULL"),
    "a policy": """
      ALTER TABLE magik_jobs ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
      CREATE POLICY everything ON magik_jobs USING (true);
      CREATE POLICY kept ON magik_jobs AS RESTRICTIVE FOR DELETE USING (priority <> 7)""",
}

BLOCKS = """
SELECT sum(heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read)
  FROM pg_statio_user_tables WHERE relname = 'magik_jobs'"""


class House:
    """Claims jobs, runs them, and ends together what wrote nothing, as a worker's threads do between them."""

    def __init__(
        self, dsn: str, engine: Engine, app: psycopg.Connection[Any], in_one: OneExchange | None = None
    ) -> None:
        self.app, self.engine = app, engine
        self.locking = connect_locking(dsn, "house")
        self.names = names.find(self.locking, None)
        owner = register(self.locking, self.names, "house", ["default"])
        self.claims = Claims(self.locking, self.names, owner, "house")
        self.sessions = for_runs(Registry(sessionmaker(engine)))
        self.completer = Completer()
        self.in_one = in_one

    def add(self, *jobs: Job) -> None:
        with OrmSession(self.engine) as session, session.begin():
            session.add_all(jobs)

    def claim(self, n: int) -> list[Claimed]:
        return self.claims.claim("default", n, list(declared()), Busy((), ())).jobs

    def run(self, claimed: Claimed) -> Outcome:
        with self.engine.connect() as connection:
            together = self.completer.takes(claimed)
            this = Run(claimed, lambda: connection, self.sessions, lambda: False, in_one=self.in_one, together=together)
            outcome = run(this)
        if outcome is Outcome.PERFORMED:
            self.completer.add(Ended(claimed, outcome))
        return outcome

    def perform(self, *jobs: Job) -> list[Outcome]:
        self.add(*jobs)
        return [self.run(claimed) for claimed in self.claim(len(jobs))]

    def complete(self) -> list[Outcome]:
        return [ended.outcome for ended in self.completer.complete(self.locking, self.names)]

    def complete_late(self) -> list[Outcome]:
        """The same; the first of its statements that waits for a lock is cancelled, as after 10 s by the server."""
        with ThreadPoolExecutor(1) as thread:
            cancelled = thread.submit(until, self._cancel)
            try:
                return self.complete()
            finally:
                cancelled.result()

    def _cancel(self) -> bool:
        waiting = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        return self.app.execute(waiting, [self.locking.info.backend_pid]).fetchone() == (True,)

    def blocks(self) -> int:
        """Of the table and its indexes that were looked at so far."""
        self.locking.execute("SELECT pg_stat_force_next_flush()")
        return int((self.locking.execute(BLOCKS.encode()).fetchone() or [0])[0])

    def rows(self) -> list[tuple[Any, ...]]:
        return self.app.execute("SELECT job_class, priority, error_count FROM magik_jobs ORDER BY id").fetchall()


@pytest.fixture(autouse=True)
def _nothing_is_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """What job modules of other tests have registered in this process gives each job a Session."""
    monkeypatch.setattr("magik_sa.around._around", {})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """By which what is locked is tried again."""
    return set_in(monkeypatch, completer)


@pytest.fixture
def house(dsn: str, engine: Engine) -> Iterator[House]:
    with psycopg.connect(dsn, autocommit=True) as app:
        house = House(dsn, engine, app)
        yield house
        house.locking.close()


def test_what_wrote_nothing_ends_in_one_statement(house: House) -> None:
    house.app.execute(COUNTED)
    assert house.perform(*(Untouched() for _ in range(3)), Alone()) == [Outcome.PERFORMED] * 4
    assert len(house.rows()) == 4, "until they are completed"
    assert house.completer.seconds() == 0
    assert house.complete() == [Outcome.FINISHED] * 4
    assert (house.rows(), house.complete(), house.completer.seconds()) == ([], [], None)
    assert house.app.execute("SELECT n FROM deletes").fetchall() == [(4,)]


@pytest.mark.parametrize("how", WAYS)
def test_what_used_its_session_in_whatever_way_ends_in_its_own_transaction(house: House, how: str) -> None:
    assert house.perform(Touched(how=how)) == [Outcome.FINISHED]
    assert not [row for row in house.rows() if row[0] == "Touched"]


def test_a_successor_is_used_of_a_session(house: House) -> None:
    assert house.perform(OfAKey(key=1)) == [Outcome.FINISHED]
    assert [row[0] for row in house.rows()] == ["OfAKey"]


def test_the_kept_are_kept(house: House) -> None:
    assert house.perform(UntouchedKept(), Untouched()) == [Outcome.PERFORMED] * 2
    assert house.complete() == [Outcome.FINISHED] * 2
    told = house.app.execute("SELECT job_class, finished_at <= now(), version FROM magik_jobs").fetchall()
    assert told == [("UntouchedKept", True, 2)]


def test_a_row_that_was_changed_meanwhile_stays_and_holds_up_no_other(house: House) -> None:
    house.perform(Untouched(), Untouched(priority=7), Untouched())
    house.app.execute("UPDATE magik_jobs SET version = version + 1 WHERE priority = 7")
    assert house.complete() == [Outcome.FINISHED, Outcome.FINISHED, Outcome.SUPERSEDED]
    assert house.rows() == [("Untouched", 7, 0)]


def test_a_row_that_somebody_has_locked_waits_alone(clock: Clock, house: House, dsn: str) -> None:
    house.perform(Untouched(), Untouched(priority=7), Untouched())
    with psycopg.connect(dsn) as somebody:
        somebody.execute("SELECT FROM magik_jobs WHERE priority = 7 FOR UPDATE")
        assert house.complete() == [Outcome.FINISHED] * 2
        assert house.completer.seconds() == pytest.approx(AGAIN_AFTER)
        clock.now += AGAIN_AFTER
        assert house.complete() == [], "it is locked still"
        assert house.completer.seconds() == pytest.approx(2 * AGAIN_AFTER)
    assert house.complete() == [], "not before its time"
    clock.now += 2 * AGAIN_AFTER
    assert house.complete() == [Outcome.FINISHED]
    assert house.rows() == []


def test_a_row_that_stays_locked_is_tried_less_often(clock: Clock, house: House, dsn: str) -> None:
    house.perform(Untouched())
    with psycopg.connect(dsn) as somebody:
        somebody.execute("SELECT FROM magik_jobs FOR UPDATE")
        for n in range(6):
            house.complete()
            pause = min(AGAIN_AFTER * 2**n, LONGEST_PAUSE)
            assert house.completer.seconds() == pytest.approx(pause)
            clock.now += pause
    assert house.complete() == [Outcome.FINISHED]


@pytest.mark.parametrize("stand", STANDS)
def test_a_row_that_the_server_does_not_let_go_holds_up_no_other_and_ends_by_itself(house: House, stand: str) -> None:
    house.perform(Untouched(), Untouched(priority=7), Untouched())
    house.app.execute(STANDS[stand].encode())
    assert sorted(each.value for each in house.complete()) == ["finished", "finished", "unrecorded"]
    house.locking.execute("SELECT pg_advisory_unlock_all()")
    (again,) = house.claim(1)
    assert not house.completer.takes(again)
    assert house.run(again) is Outcome.RETRY, "its failure is recorded as any other's"
    assert house.rows() == [("Untouched", 7, 1)]


def test_what_goes_with_a_row_and_is_locked_waits_alone(house: House, dsn: str) -> None:
    """The statement waits for it, as long as statements may."""
    house.perform(Untouched(), Untouched(priority=7), Untouched())
    house.app.execute(f"{REFERENCED} ON DELETE CASCADE".encode())
    with psycopg.connect(dsn) as somebody:
        somebody.execute("SELECT FROM kept FOR UPDATE")
        assert house.complete_late() == [Outcome.FINISHED] * 2
        until(lambda: house.completer.seconds() == 0, 1)
        assert house.complete_late() == [], "it is locked still"
    until(lambda: house.completer.seconds() == 0, 1)
    assert house.complete() == [Outcome.FINISHED]
    assert house.locking.execute("SHOW lock_timeout").fetchone() == ("0",)


def test_a_table_that_is_locked_is_no_fault_of_the_rows(house: House, dsn: str) -> None:
    house.perform(Untouched(), Untouched())
    with psycopg.connect(dsn) as somebody:
        somebody.execute("LOCK TABLE magik_jobs")
        with pytest.raises(psycopg.errors.QueryCanceled):
            house.complete_late()
    assert house.complete() == [Outcome.FINISHED] * 2


@pytest.mark.parametrize(
    ("at", "how", "outcome", "left"),
    [
        ("DELETE", "reads", Outcome.RETRY, ("MAGIK_ROW_KEPT", 1)),
        ("UPDATE OR DELETE", "reads", Outcome.UNRECORDED, ("", 0)),
    ],
)
@pytest.mark.parametrize("with_its_commit", [True, False])
def test_a_run_whose_row_the_server_keeps_without_a_word_has_failed(
    house: House, at: str, how: str, outcome: Outcome, left: tuple[str, int], with_its_commit: bool
) -> None:
    """Nobody else has the job: taken for superseded it would run again at once, and for ever."""
    house.in_one = OneExchange(house.engine) if with_its_commit else None
    house.app.execute(TRIGGER.format(at=at, does="NULL").encode())
    assert house.perform(Touched(how=how, priority=7)) == [outcome]
    code = "SELECT coalesce(substring(last_error FROM 'MAGIK_[A-Z_]+'), ''), error_count FROM magik_jobs"
    assert house.app.execute(code).fetchone() == left


def test_what_breaks_the_connection_leaves_all_to_be_done(house: House, dsn: str) -> None:
    house.perform(Untouched(), Untouched())
    house.app.execute("SELECT pg_terminate_backend(%s)", [house.locking.info.backend_pid])
    with pytest.raises(psycopg.OperationalError):
        house.complete()
    house.locking = connect_locking(dsn, "house")
    assert house.complete() == [Outcome.FINISHED] * 2


def test_a_completion_goes_by_the_primary_key_though_it_was_planned_for_an_empty_table(house: House) -> None:
    """Until the next autovacuum the plan of an empty table would read the whole of it."""
    house.app.execute("ALTER TABLE magik_jobs SET (autovacuum_enabled = off)")  # whose blocks would be counted
    house.app.execute("VACUUM magik_jobs")
    for _ in range(10):  # and it is made once for all from the sixth on
        complete(house.locking, house.names, [], 1, keep=False)
    house.app.execute("INSERT INTO magik_jobs (job_class) SELECT 'Untouched' FROM generate_series(1, 20000)")
    ids = [id for (id,) in house.app.execute("SELECT id FROM magik_jobs LIMIT 5")]
    before = house.blocks()
    assert complete(house.locking, house.names, ids, 1, keep=False) == set(ids)
    assert house.blocks() - before < 60


# ---- without a Session


@pytest.mark.parametrize(
    ("how", "outcome", "left"),
    [
        ("", Outcome.PERFORMED, [("Alone", 100, 0)]),
        ("fails", Outcome.RETRY, [("Alone", 100, 1)]),
        ("snoozes", Outcome.SNOOZED, [("Alone", 100, 0)]),
        ("discards", Outcome.EXPIRED, [("Alone", 100, 0)]),
        ("changes itself", Outcome.FINISHED, []),
    ],
)
def test_a_job_without_a_session_ends_in_every_way(
    house: House, how: str, outcome: Outcome, left: list[tuple[Any, ...]]
) -> None:
    assert house.perform(Alone(how=how)) == [outcome]
    assert house.rows() == left


def test_what_it_raised_is_its_failure_whatever_it_has_left_in_itself(house: House) -> None:
    assert house.perform(Alone(how="spoils itself and fails")) == [Outcome.RETRY]
    told = house.app.execute("SELECT last_error ~ '^ValueError: alone', queue FROM magik_jobs").fetchone()
    assert told == (True, "default")


def test_what_it_changed_in_place_is_kept_with_its_end(house: House) -> None:
    assert house.perform(Noting(), Noting(more=False)) == [Outcome.SNOOZED, Outcome.PERFORMED]
    assert house.app.execute("SELECT args -> 'done' FROM magik_jobs ORDER BY id").fetchall() == [([1],), ([],)]


@pytest.mark.parametrize(("fails", "error"), [(False, "InvalidRequestError"), (True, "ValueError")])
def test_that_it_joins_a_session_of_its_own_is_its_own_failure(
    house: House, fails: bool, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.jobs.idle_hands.joined", [])
    assert house.perform(Joining(fails=fails)) == [Outcome.RETRY]
    assert house.app.execute("SELECT split_part(last_error, ':', 1), priority FROM magik_jobs").fetchone() == (
        error,
        100,
    )


def test_it_has_one_where_it_is_made_of_more_than_its_row(house: House) -> None:
    make(house.engine)
    with OrmSession(house.engine) as session, session.begin():
        session.add(Pigeon(customer=Customer(name="ada"), subject="a hat", queue="default"))
    assert [house.run(claimed) for claimed in house.claim(1)] == [Outcome.FINISHED]
    assert house.app.execute("SELECT letters FROM customers").fetchall() == [(5,)]


def test_its_row_is_read_before_it_is_performed(house: House) -> None:
    house.add(Alone(how="does not fit"))
    house.app.execute("""UPDATE magik_jobs SET args = '{"how": 7}'""")
    assert [house.run(claimed) for claimed in house.claim(1)] == [Outcome.RETRY]
    assert house.app.execute("SELECT last_error ~ 'MAGIK_ARGS_INVALID' FROM magik_jobs").fetchone() == (True,)


def test_around_it_there_may_be_a_session(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[OrmSession] = []

    def watched(job: Job, session: OrmSession) -> Iterator[None]:
        seen.append(session)
        yield

    monkeypatch.setattr(around, "_around", {("here", "watched"): watched})
    assert house.perform(Alone()) == [Outcome.PERFORMED]
    assert [type(each).__name__ for each in seen] == ["Session"]


def test_an_applications_own_registry_has_a_session_for_it(
    house: House, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it calls may ask there: a Session of nobody's would stay in the thread, in the way of the next."""
    registry = scoped_session(sessionmaker(engine))
    house.sessions = for_runs(registry)
    monkeypatch.setattr("tests.jobs.idle_hands.asked", [registry])
    house.add(Untouched(delay="1h"))
    assert house.perform(Alone(how="asks"), Alone()) == [Outcome.FINISHED, Outcome.PERFORMED]
    assert house.rows()[0] == ("Untouched", 9, 0), "committed with its end"
    assert not registry.registry.has()
