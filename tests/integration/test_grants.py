"""What docs/grants.md grants is enough, no line of it is too many, and what is missing is told with its statement."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, delete, event, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Mapped, scoped_session, sessionmaker
from sqlalchemy.orm import Session as OrmSession

from magik_sa import Job, Retries, Schedule, arg, bulk_enqueue, grants, names, once, ticks, timetable, tries, wake
from magik_sa.asking import Asking
from magik_sa.claim import Busy, Claims
from magik_sa.database import check_schema, check_server
from magik_sa.doctor import Severity, Subject, examine
from magik_sa.errors import MagikError
from magik_sa.job_session import Run, for_runs
from magik_sa.outcome import Outcome
from magik_sa.pruning import prune
from magik_sa.run import run
from magik_sa.server import connect_locking
from magik_sa.settings import Settings
from magik_sa.status import status
from magik_sa.status.at_work import at_work
from magik_sa.ticks import ScheduleFailed
from magik_sa.timeout import Limits
from magik_sa.url import conninfo
from magik_sa.worker.letters import Ended
from magik_sa.worker.tally import Tally, publish
from tests.tools import roles
from tests.tools.cluster import Cluster
from tests.tools.roles import DATABASE, OBSERVER, OWNER, PRODUCER, WORKER, Grant, granted, url

TABLES = ("magik_jobs", "magik_job_schedules", "magik_queues", "magik_claims", "magik_workers", "magik_effects")
VERBS = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE")
PRODUCERS, WORKERS, OBSERVERS = (granted(f"## The {role}") for role in ("producer", "worker", "observer"))


class Booked(Job, policy="system", name="grants.Booked"):
    """Happens once for its number, adds the next; fails as often as it is told to."""

    idempotent_by = "number"
    schedule = Schedule(every="1h", args={"number": 0})
    retries = Retries(times=1)
    number: Mapped[int] = arg()
    fails: Mapped[int] = arg(default=0)

    def perform(self, session: OrmSession) -> None:
        assert once(session, self.number, scope=f"grants {self.id}")
        if self.error_count < self.fails:
            raise ValueError(self.number)
        session.add(Booked(number=-1, delay="1h"))


class Kept(Job, policy="system", name="grants.Kept"):
    """Its row stays."""

    keep = "1d"

    def perform(self, session: OrmSession) -> None:
        """Does nothing."""


KNOWN = {cls.__magik__.name: cls for cls in (Booked, Kept)}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with roles.server() as cluster:
        yield cluster


@pytest.fixture
def dba(cluster: Cluster) -> Iterator[Callable[[str], Any]]:
    """Executes as the superuser. Each test has the database as the page grants it."""
    roles.renew(cluster)
    with psycopg.connect(cluster.dsn(DATABASE), autocommit=True) as connection:
        connection.execute("SET search_path = magik")
        yield lambda statement: connection.execute(statement.encode())


@contextmanager
def engine_of(cluster: Cluster, role: str) -> Iterator[Engine]:
    engine = create_engine(url(cluster, role))
    try:
        yield engine
    finally:
        engine.dispose()


# ---- what each role does


def produce(cluster: Cluster) -> None:
    """All that an application does with jobs."""
    with engine_of(cluster, PRODUCER) as engine, OrmSession(engine) as session, session.begin():
        session.add_all([Booked(number=1), Kept()])
        session.flush()
        session.add(repeat := Booked(number=1))
        session.flush()
        assert repeat.is_repeat
        assert bulk_enqueue(session, [Booked(number=number) for number in (1, 2, 3)]) == 2
        with session.begin_nested() as savepoint:
            session.add(Booked(number=4))
            session.flush()
            savepoint.rollback()
        assert len(session.scalars(select(Booked)).all()) == 3
        moved = update(Booked).where(Booked.number == 2).values(priority=1, version=Booked.version + 1)
        assert session.execute(moved).rowcount == 1  # type: ignore[attr-defined]
        session.delete(session.scalars(select(Kept).with_for_update()).one())
        session.execute(delete(Booked).where(Booked.number == 3))
        assert once(session, 1, scope="produced")
        assert session.scalars(select(Booked.number).order_by(Booked.number)).all() == [1, 2]
        session.rollback()


def work(cluster: Cluster, dba: Callable[[str], Any]) -> None:
    """All that a worker does, one after the other in this thread, without its check at boot."""
    with ExitStack() as stack:
        engine = stack.enter_context(engine_of(cluster, WORKER))
        locking = stack.enter_context(closing(connect_locking(conninfo(engine.url), "bench")))
        application = stack.enter_context(engine.connect())
        assert list(check_schema(application)) == []
        application.rollback()
        found = names.find(locking, None)
        claims = Claims(locking, found, wake.register(locking, found, "bench", ["default"]), "bench")
        sessions = for_runs(scoped_session(sessionmaker(engine)))
        _schedule(application, sessions)
        dba("DELETE FROM magik_jobs")
        for _ in range(2):  # to notes of its own, and then to those of a dead one
            _claims(claims, dba)
            dba("UPDATE magik_claims SET backend_pid = 1")
        dba("DELETE FROM magik_jobs")
        tally = Tally(["default"])
        for name, args, outcome in ENDS:
            dba(f"INSERT INTO magik_jobs (job_class, args) VALUES ('{name}', '{args}')")
            (claimed,) = claims.claim("default", 1, list(KNOWN), Busy((), ())).jobs
            assert run(Run(claimed, lambda: application, sessions, lambda: False)) is outcome
            claims.release([claimed])
            tally.note(Ended(claimed, outcome))
        publish(locking, found, claims.owner, tally)
        wake.raise_flag(locking, found, "default")
        wake.seconds_to_next(locking, found, "default", list(KNOWN))
        wake.lower_flag(locking, found, "default")
        dba("INSERT INTO magik_workers VALUES (1, now(), 'dead', '{default}')")
        assert wake.hint(locking, found) == 1
        wake.end_session(locking, found, (1, None), "bench")
        wake.unregister(locking, found, claims.owner)


ENDS = (
    ("grants.Booked", '{"number": 1}', Outcome.FINISHED),
    ("grants.Kept", "{}", Outcome.FINISHED),
    ("grants.Booked", '{"number": 2, "fails": 1}', Outcome.RETRY),
    ("grants.Booked", '{"number": "no number"}', Outcome.RETRY),
)


def _claims(claims: Claims, dba: Callable[[str], Any]) -> None:
    dba("INSERT INTO magik_jobs (job_class) SELECT 'grants.Kept' FROM generate_series(1, 2)")
    batch = claims.claim("default", 9, list(KNOWN), Busy((), ())).jobs
    assert len(batch) >= 2
    claims.notes.begun([job.id for job in batch])
    claims.take_again(batch, [claims.owner])
    claims.give_back(batch)


def _schedule(application: Any, sessions: Any) -> None:
    """Declared anew, declared otherwise, fired, strange, taken away."""

    def refuse(entry: Any, error: BaseException) -> None:
        raise AssertionError(entry) from error

    entries = timetable.timetable({"grants.Booked": Booked})
    timetable.write(application, KNOWN, entries, refuse)
    with application.begin():
        application.execute(text("UPDATE magik_job_schedules SET next_run_at = now()"))
    (tick,) = ticks.look(application, entries)
    begun = tries.begin(tick, application)
    assert begun is not None
    assert begun.note is not None
    assert ticks.fire(tick, begun.note, sessions, application, Limits()) == 1
    assert timetable.strange(application, entries) == []
    timetable.write(application, KNOWN, {}, refuse)


def boot(cluster: Cluster, locking: str | None = None, **query: str) -> list[MagikError]:
    """What a worker finds when it starts."""
    engine = create_engine(url(cluster, WORKER, **query))
    try:
        settings = Settings(locking_url=locking)
        return list(check_server(conninfo(locking or engine.url), engine, settings, 1))
    finally:
        engine.dispose()


def look(cluster: Cluster) -> list[str]:
    """All that an observer does; what is unknown, and why."""
    with engine_of(cluster, OBSERVER) as engine, engine.connect() as connection:
        found = examine(Subject(Asking(connection, 15.0), conninfo(engine.url)))
        unknown = [finding.said for finding in found if finding.severity is Severity.UNKNOWN]
        asked = (status(Asking(connection)), at_work(Asking(connection)))
        return [*(why for each in asked for why in each.unknown.values()), *unknown]


# ---- enough, and nothing too many


def test_each_role_does_all_that_it_is_for(cluster: Cluster, dba: Callable[[str], Any]) -> None:
    """Also where nobody may execute the functions of the triggers, and where defaults make the columns."""
    dba("REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA magik FROM PUBLIC")
    produce(cluster)
    assert boot(cluster) == []
    work(cluster, dba)
    assert look(cluster) == []


def test_who_prunes_effects_has_what_the_page_grants(cluster: Cluster, dba: Callable[[str], Any]) -> None:
    *_, grant = re.findall(r"GRANT .* ON magik\.magik_effects TO shop_worker", roles.PAGE.read_text())
    dba(
        "INSERT INTO magik.magik_effects (scope, key_digest, done_at) VALUES ('s', sha256('a'), now() - interval '9 d')"
    )
    dba(grant)
    with engine_of(cluster, WORKER) as engine, engine.connect() as connection:
        done = prune(connection, effects_older_than="1d")
    assert (done.failed, done.effects) == ({}, 1)


def test_each_role_is_refused_all_else(cluster: Cluster, dba: Callable[[str], Any]) -> None:
    attempts = {
        "SELECT": "SELECT * FROM {}",
        "INSERT": "INSERT INTO {} DEFAULT VALUES",
        "UPDATE": "UPDATE {} SET {} = DEFAULT",
        "DELETE": "DELETE FROM {}",
        "TRUNCATE": "TRUNCATE {}",
    }
    some = {"magik_workers": "backend_pid", "magik_claims": "job_id", "magik_effects": "scope", "magik_jobs": "id"}
    for allowed in (PRODUCERS, WORKERS, OBSERVERS):
        with psycopg.connect(cluster.dsn(DATABASE, allowed[0].role), autocommit=True) as connection:
            for table in (*TABLES, "magik_schema"):
                for verb in {*VERBS} - {grant.privilege for grant in allowed if grant.table == table}:
                    column = some.get(table, "version" if table == "magik_schema" else "name")
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        connection.execute(attempts[verb].format(table, column).encode())
            for statement in (
                "CREATE TABLE magik.more ()",
                "DROP TABLE magik_jobs",
                "ALTER TABLE magik_jobs DISABLE TRIGGER ALL",
                "CREATE INDEX ON magik_jobs (args)",
                "DROP FUNCTION magik_jobs_added() CASCADE",
                "DROP SCHEMA magik CASCADE",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(statement.encode())
    with psycopg.connect(cluster.dsn(DATABASE, OWNER), autocommit=True) as owner:
        for statement in ("CREATE ROLE more", "CREATE SCHEMA more", "CREATE TABLE public.more ()", "CREATE DATABASE m"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                owner.execute(statement.encode())


def test_an_observer_reads_no_arguments(cluster: Cluster, dba: Callable[[str], Any]) -> None:
    with psycopg.connect(cluster.dsn(DATABASE, OBSERVER), autocommit=True) as connection:
        for column in ("args", "context", "last_error", "key_digest"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(f"SELECT {column} FROM magik_jobs".encode())


@pytest.fixture
def without(request: pytest.FixtureRequest, dba: Callable[[str], Any]) -> Grant:
    """One privilege has been taken away."""
    grant: Grant = request.param
    dba(grant.taken)
    return grant


def named(grant: Grant) -> str:
    return f"{grant.role.removeprefix('shop_')}-{grant.privilege}-{grant.table or grant.on}"


def refused(cluster: Cluster, grant: Grant, act: Callable[[], object]) -> bool:
    """Whether the server refuses something of it for the lack of this privilege."""
    before = len(cluster.read_log())
    with pytest.raises((psycopg.Error, DBAPIError, ScheduleFailed, AssertionError)):
        act()
    return not grant.table or f"permission denied for table {grant.table}" in cluster.read_log()[before:]


@pytest.mark.parametrize("without", PRODUCERS, ids=named, indirect=True)
def test_no_grant_of_the_producers_is_too_many(cluster: Cluster, without: Grant) -> None:
    assert refused(cluster, without, lambda: produce(cluster))


@pytest.mark.parametrize("without", WORKERS, ids=named, indirect=True)
def test_no_grant_of_the_workers_is_too_many_and_boot_names_the_one_that_is_missing(
    cluster: Cluster, dba: Callable[[str], Any], without: Grant
) -> None:
    """With the statement that mends it."""
    assert refused(cluster, without, lambda: work(cluster, dba))
    (error,) = boot(cluster)
    assert error.code == "MAGIK_GRANT_MISSING"
    assert error.remedy.endswith(f": {without.given};")
    dba(error.remedy.partition(": ")[2])
    assert boot(cluster) == []


@pytest.mark.parametrize("without", [grant for grant in OBSERVERS if grant.table], ids=named, indirect=True)
def test_no_grant_of_the_observers_is_too_many_and_the_one_that_is_missing_is_named(
    cluster: Cluster, without: Grant
) -> None:
    """With what is unknown without it."""
    unknown = look(cluster)
    assert unknown
    assert all(f"(MAGIK_GRANT_MISSING: {without.given.split(' (')[0]}" in why for why in unknown)


# ---- the producer's transaction stays its own


def test_a_refused_add_goes_back_to_the_callers_savepoint(cluster: Cluster, dba: Callable[[str], Any]) -> None:
    dba("REVOKE INSERT ON magik_jobs FROM shop_producer")
    with engine_of(cluster, PRODUCER) as engine, OrmSession(engine) as session, session.begin():
        session.execute(text("CREATE TEMP TABLE orders ON COMMIT DROP AS SELECT 1 AS number"))
        with pytest.raises(DBAPIError, match="permission denied for table magik_jobs"), session.begin_nested():
            session.add(Kept())
        assert session.scalar(text("SELECT number FROM orders")) == 1


# ---- at boot


def statements(error: MagikError) -> list[str]:
    """What is to be pasted."""
    return error.remedy.partition(": ")[2].removesuffix(";").split("; ")


def test_boot_names_all_that_is_missing_at_once(cluster: Cluster, dba: Callable[[str], Any]) -> None:
    """One statement for the schema and one a table mend it, also where the search_path does not lead there any more."""
    for grant in WORKERS:
        dba(grant.taken)
    (error,) = boot(cluster)
    assert error.code == "MAGIK_GRANT_MISSING"
    assert len(statements(error)) == 1 + len({grant.table for grant in WORKERS if grant.table})
    for statement in statements(error):
        dba(statement)
    assert boot(cluster) == []


def test_boot_names_both_roles_where_there_are_two(cluster: Cluster, dba: Callable[[str], Any]) -> None:
    """The locking connection needs the lines that the page says, and the engine the others."""
    locking = url(cluster, "shop_locker")
    dba("CREATE ROLE shop_locker LOGIN; GRANT CONNECT ON DATABASE shop TO shop_locker")
    dba("ALTER ROLE shop_locker SET search_path = magik; REVOKE DELETE ON magik_jobs FROM shop_worker")
    theirs, ours = boot(cluster, locking)
    assert statements(theirs) == ["GRANT DELETE ON magik.magik_jobs TO shop_worker"]
    assert statements(ours) == [
        "GRANT USAGE ON SCHEMA magik TO shop_locker",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON magik.magik_claims TO shop_locker",
        "GRANT SELECT ON magik.magik_jobs TO shop_locker",
        "GRANT SELECT ON magik.magik_queues TO shop_locker",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON magik.magik_workers TO shop_locker",
    ]
    for statement in [*statements(theirs), *statements(ours)]:
        dba(statement)
    assert boot(cluster, locking) == []


def test_privileges_on_all_columns_are_as_good_as_on_the_table(cluster: Cluster, dba: Callable[[str], Any]) -> None:
    dba("REVOKE SELECT ON magik_schema FROM shop_worker")
    dba("GRANT SELECT (version, only_row) ON magik_schema TO shop_worker")
    assert boot(cluster) == []
    dba("REVOKE SELECT (version) ON magik_schema FROM shop_worker")
    assert "SELECT on magik.magik_schema" in boot(cluster)[0].what


def test_without_connect_the_grant_is_named(cluster: Cluster, dba: Callable[[str], Any]) -> None:
    dba("REVOKE CONNECT ON DATABASE shop FROM shop_worker")
    (error,) = boot(cluster)
    assert (error.code, statements(error)) == (
        "MAGIK_GRANT_MISSING",
        ['GRANT CONNECT ON DATABASE "shop" TO "shop_worker"'],
    )
    dba(statements(error)[0])
    assert boot(cluster) == []


def test_a_member_of_a_group_has_its_grants_if_it_inherits_them(cluster: Cluster, dba: Callable[[str], Any]) -> None:
    dba("CREATE ROLE member LOGIN INHERIT; CREATE ROLE stranger LOGIN NOINHERIT")
    dba("GRANT shop_worker TO member, stranger; GRANT CONNECT ON DATABASE shop TO member, stranger")
    with member(cluster, "member") as found:
        assert found == []
    with member(cluster, "stranger") as (error,):
        assert "GRANT SELECT, INSERT, UPDATE, DELETE ON magik.magik_claims TO stranger" in error.remedy


@contextmanager
def member(cluster: Cluster, role: str, **query: str) -> Iterator[list[MagikError]]:
    """What a worker of another role finds."""
    engine = create_engine(url(cluster, role, options="-csearch_path=magik", **query))
    yield list(check_server(conninfo(engine.url), engine, Settings(), 1))
    engine.dispose()


def test_a_role_that_was_set_has_to_see_the_sessions_of_its_login(cluster: Cluster, dba: Callable[[str], Any]) -> None:
    """The engine's may be any; the locking connection, which could not even say who it is, is refused."""
    dba("CREATE ROLE setter LOGIN NOINHERIT; GRANT shop_worker TO setter; GRANT CONNECT ON DATABASE shop TO setter")
    dba("ALTER ROLE setter SET role = shop_worker")
    with member(cluster, "setter") as (error,):
        assert "sight of the sessions of setter" in error.what
        with closing(connect_locking(conninfo(url(cluster, "setter")), "bench")) as locking:
            locking.execute("SET search_path = magik")
            with pytest.raises(psycopg.errors.NotNullViolation):
                wake.register(locking, names.find(locking, None), "bench", ["default"])
    engine = create_engine(url(cluster, "setter", options="-csearch_path=magik"))
    assert list(check_server(conninfo(url(cluster, WORKER)), engine, Settings(), 1)) == []
    engine.dispose()
    for statement in statements(error):
        dba(statement)
    with member(cluster, "setter") as found:
        assert found == []
    dba("REVOKE pg_read_all_stats, pg_signal_backend FROM shop_worker")


def test_an_application_may_set_its_role(cluster: Cluster, dba: Callable[[str], Any]) -> None:
    """Whoever has logged in: what is added in a role is added by it."""
    dba("CREATE ROLE web LOGIN NOINHERIT; GRANT CONNECT ON DATABASE shop TO web; GRANT shop_producer TO web")
    with engine_of(cluster, "web") as engine:
        event.listen(
            engine, "connect", lambda driver, _: driver.execute("SET role shop_producer; SET search_path = magik")
        )
        with OrmSession(engine) as session, session.begin():
            session.add(Booked(number=7))
    assert dba("SELECT count(*) FROM magik_jobs").fetchone() == (1,)


def test_row_security_without_a_policy_for_the_role_is_refused(cluster: Cluster, dba: Callable[[str], Any]) -> None:
    """It would see no job and say nothing; and to an observer what it hides is unknown, and not zero."""
    dba("INSERT INTO magik_jobs (job_class) VALUES ('grants.Kept')")
    dba("ALTER TABLE magik_jobs ENABLE ROW LEVEL SECURITY")
    with psycopg.connect(cluster.dsn(DATABASE, WORKER)) as connection:
        assert connection.execute("SELECT count(*) FROM magik_jobs").fetchone() == (0,)
    (error,) = boot(cluster)
    assert statements(error) == ["CREATE POLICY magik_shop_worker ON magik.magik_jobs TO shop_worker USING (true)"]
    assert any('row-level security policy for table "magik_jobs"' in why for why in look(cluster))
    dba("CREATE POLICY reading ON magik_jobs FOR SELECT TO PUBLIC USING (true)")
    assert len(boot(cluster)) == 1
    dba(statements(error)[0])
    assert boot(cluster) == []
    work(cluster, dba)


@pytest.fixture
def functions(dba: Callable[[str], Any]) -> Iterator[set[str]]:
    """All that a worker calls; only who is granted them may."""
    functions = {*grants.LOCKING.functions, *grants.PERFORMING.functions}
    dba("".join(f"REVOKE EXECUTE ON FUNCTION pg_catalog.{function} FROM PUBLIC;" for function in functions))
    yield functions
    dba("".join(f"GRANT EXECUTE ON FUNCTION pg_catalog.{function} TO PUBLIC;" for function in functions))


def test_functions_that_nobody_may_execute_any_more_are_named(
    cluster: Cluster, dba: Callable[[str], Any], functions: set[str]
) -> None:
    (error,) = boot(cluster)
    wanted = {f"GRANT EXECUTE ON FUNCTION pg_catalog.{function} TO shop_worker" for function in functions}
    assert {*statements(error)} == wanted
    for statement in statements(error):
        dba(statement)
    assert boot(cluster) == []
    work(cluster, dba)


def test_a_producer_needs_three_functions_that_everybody_may_execute(
    cluster: Cluster, dba: Callable[[str], Any], functions: set[str]
) -> None:
    with pytest.raises(DBAPIError, match="permission denied for function"):
        produce(cluster)
    dba(roles.PAGE.read_text().rpartition("```sql\n")[2].partition(";\n```")[0])
    produce(cluster)
