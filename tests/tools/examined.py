"""What the doctor finds in a database, in this process; and two ways of getting there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
from sqlalchemy import NullPool, create_engine

from magik_sa.asking import Asking
from magik_sa.doctor import Finding, Limits, Severity, Subject, examine
from magik_sa.url import conninfo


@contextmanager
def subject(database: str, locking: str | None = None, **limits: Any) -> Iterator[Subject]:
    """The database, as ``magik doctor`` looks at it."""
    given = {"prepare_threshold": None, "application_name": "magik_sa doctor"}
    engine = create_engine(database, poolclass=NullPool, connect_args=given)
    with engine.connect() as connection:
        yield Subject(Asking(connection, 15), conninfo(locking or database), Limits(**limits))


def finding(database: str, name: str, locking: str | None = None, **limits: Any) -> Finding:
    """One of all findings."""
    with subject(database, locking, **limits) as looked_at:
        found = examine(looked_at)
    (one,) = [each for each in found if each.name == name]
    return one


def run(dsn: str, *statements: str) -> None:
    """Each statement in a transaction of its own."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@contextmanager
def snapshot(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A session that keeps looking at the database as it is now."""
    with closing(psycopg.connect(dsn, application_name="reporting")) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT count(*) FROM magik_jobs")
        yield connection


def warned(database: str, name: str, **limits: Any) -> Finding | None:
    """It, where it is a warning."""
    found = finding(database, name, **limits)
    return found if found.severity is Severity.WARNING else None
