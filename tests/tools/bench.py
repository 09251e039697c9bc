"""One job at a time through this thread, from its claim to its end, as a worker's threads do between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.orm import Session as OrmSession
from sqlalchemy.orm import scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from magik_sa import Job, names, wake
from magik_sa.claim import Busy, Claimed, Claims
from magik_sa.job import declared
from magik_sa.job_session import Run, for_runs
from magik_sa.one_exchange import OneExchange
from magik_sa.outcome import Outcome
from magik_sa.run import run
from magik_sa.server import connect_locking

Session = sessionmaker[OrmSession]


class Bench:
    """A locking connection, and `connection` for what the jobs do; `in_one`: how they end together with a commit."""

    def __init__(self, dsn: str, connection: Connection, in_one: OneExchange | None = None) -> None:
        self.locking = connect_locking(dsn, "bench")
        found = names.find(self.locking, None)
        owner = wake.register(self.locking, found, "bench", ["default"])
        self.claims = Claims(self.locking, found, owner, "bench")
        self.connection = connection
        self.sessions = for_runs(scoped_session(sessionmaker(connection.engine)))
        self.in_one = in_one

    def claim(self) -> Claimed:
        (claimed,) = self.claims.claim("default", 1, list(declared()), Busy((), ())).jobs
        return claimed

    def run(self, claimed: Claimed) -> Outcome:
        return run(Run(claimed, lambda: self.connection, self.sessions, lambda: False, in_one=self.in_one))

    def next(self, meanwhile: Callable[[], object] = lambda: None) -> Outcome:
        """Claim the next job, let something happen, run it, give its locks back."""
        claimed = self.claim()
        meanwhile()
        outcome = self.run(claimed)
        self.claims.release([claimed])
        return outcome


def add(Session: Session, *jobs: Job) -> None:
    with Session() as session, session.begin():
        session.add_all(jobs)


def notes(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(text("SELECT what FROM notes")))


def rows(engine: Engine) -> list[Any]:
    with engine.connect() as connection:
        return list(connection.execute(text("SELECT *, run_at - now() AS wait FROM magik_jobs ORDER BY id")))


def execute(engine: Engine, statement: str) -> Callable[[], None]:
    def now() -> None:
        with engine.begin() as connection:
            connection.execute(text(statement))

    return now


@contextmanager
def in_one_exchange(dsn: str, engine: Engine) -> Iterator[Bench]:
    """One whose jobs end together with their commit, with a table for their notes."""
    execute(engine, "CREATE TABLE notes (what text)")()
    with engine.connect() as connection:
        bench = Bench(dsn, connection, OneExchange(engine))
        yield bench
        bench.locking.close()


def begin_elsewhere(session: OrmSession) -> None:
    """A transaction of a job's on another engine than its own, with a note in it."""
    other = create_engine(session.get_bind().engine.url, poolclass=NullPool)
    session.connection(bind_arguments={"bind": other}).execute(text("INSERT INTO notes VALUES ('elsewhere')"))
