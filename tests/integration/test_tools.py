"""The tools of the process tests do what they say."""

from __future__ import annotations

import psycopg
from sqlalchemy import Engine, text


def test_each_test_has_a_database_of_its_own_as_a_plain_role(engine: Engine, database: str) -> None:
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")) is False
        assert connection.scalar(text("SELECT current_database()")) in database


def test_a_superuser_reaches_the_same_database(superuser_dsn: str, dsn: str) -> None:
    query = "SELECT current_database()"
    with psycopg.connect(superuser_dsn) as admin, psycopg.connect(dsn) as plain:
        assert admin.execute(query).fetchone() == plain.execute(query).fetchone()
