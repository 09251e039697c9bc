"""Jobs whose connections a test ends between two statements, and an application's own Sessions for them."""

from __future__ import annotations

import os
import threading

import psycopg
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from magik_sa import Job, Retries
from tests.tools.effects import effect
from tests.tools.workers import dsn_of

url = make_url(os.environ.get("MAGIK_DATABASE_URL", "postgresql://nowhere/none"))
named = {"application_name": "app performer"}
engine = create_engine(url.set(drivername="postgresql+psycopg2"), pool_size=5, connect_args=named)
Sessions = scoped_session(sessionmaker(engine))


class Between(Job, policy="system"):
    """Writes twice, and between that waits for the gate."""

    retries = Retries(times=3, backoff="constant", base="1h", jitter=0)

    def perform(self, session: Session) -> None:
        with effect(self):
            session.execute(text("INSERT INTO notes VALUES ('first')"))
            wait_for_gate()
            session.execute(text("INSERT INTO notes VALUES ('second')"))


class AfterCut(Job, policy="system"):
    """Writes once, through its Session."""

    def perform(self, session: Session) -> None:
        session.execute(text("INSERT INTO notes VALUES ('marker')"))


def wait_for_gate() -> None:
    """Until the test has made the table `gate`."""
    with psycopg.connect(dsn_of(os.environ["MAGIK_DATABASE_URL"]), autocommit=True) as connection:
        while connection.execute("SELECT to_regclass('gate')").fetchone() == (None,):
            threading.Event().wait(0.02)
