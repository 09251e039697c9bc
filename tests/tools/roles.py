"""A server with the four roles of docs/grants.md, granted what that page prints and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import psycopg
from sqlalchemy import make_url

from .cluster import Cluster
from .schema import migrate
from .workers import ROOT

PAGE = ROOT / "docs" / "grants.md"
DATABASE, SCHEMA = "shop", "magik"
OWNER, PRODUCER, WORKER, OBSERVER = (f"shop_{role}" for role in ("owner", "producer", "worker", "observer"))


class Grant(NamedTuple):
    """One privilege of one role. `on` is a table, a schema, or nothing where it is the membership in a role."""

    role: str
    privilege: str
    on: str

    @property
    def table(self) -> str:
        """The table's name without its schema, or nothing."""
        return self.on.rpartition(".")[2] if "." in self.on else ""

    @property
    def given(self) -> str:
        return f"GRANT {self.privilege}{f' ON {self.on}' if self.on else ''} TO {self.role}"

    @property
    def taken(self) -> str:
        return f"REVOKE {self.privilege}{f' ON {self.on}' if self.on else ''} FROM {self.role}"


def printed(heading: str) -> list[str]:
    """The statements of the first SQL block below a heading of the page."""
    _, found, rest = f"\n{PAGE.read_text()}".partition(f"\n{heading}\n")
    block = re.search(r"```sql\n(.*?)```", rest, re.DOTALL)
    assert found
    assert block
    return [each.strip() for each in re.sub(r"--.*", "", block[1]).split(";") if each.strip()]


def granted(heading: str) -> list[Grant]:
    """Each privilege of these statements by itself; of a list of columns each column."""
    return [grant for statement in printed(heading) for grant in _apart(statement)]


def _apart(statement: str) -> Iterator[Grant]:
    parts = re.fullmatch(r"GRANT (.+?)(?: ON (.+))? TO (\w+)", statement)
    assert parts, statement
    privileges, tables, role = parts.groups()
    if columns := re.fullmatch(r"(\w+) \((.+)\)", privileges):
        privileges = ", ".join(f"{columns[1]}:({column})" for column in columns[2].split(", "))
    for privilege in privileges.split(", "):
        yield from (Grant(role, privilege.replace(":", " "), on) for on in (tables or "").split(", "))


@contextmanager
def server() -> Iterator[Cluster]:
    """The roles, and the database of the page with the owner's tables; nobody may do what the page does not grant.

    The search_path of all four leads to the tables.
    """
    with Cluster() as cluster:
        cluster.execute("CREATE DATABASE shop")
        for statement in [*printed("# Grants"), *printed("## The owner")]:
            cluster.execute(statement, DATABASE)
        for role in (OWNER, PRODUCER, WORKER, OBSERVER):
            cluster.execute(f"ALTER ROLE {role} SET search_path = {SCHEMA}, public")
        migrate(cluster.url(DATABASE, OWNER))
        renew(cluster)
        yield cluster


RENEW = """
DO $$ DECLARE name text; BEGIN
  FOR name IN SELECT polname FROM pg_policy LOOP EXECUTE format('DROP POLICY %I ON magik.magik_jobs', name); END LOOP;
END $$;
ALTER TABLE magik.magik_jobs DISABLE ROW LEVEL SECURITY;
REVOKE ALL ON ALL TABLES IN SCHEMA magik FROM shop_producer, shop_worker, shop_observer;
REVOKE ALL ON SCHEMA magik FROM shop_producer, shop_worker, shop_observer;
TRUNCATE magik.magik_jobs, magik.magik_claims, magik.magik_workers, magik.magik_job_schedules, magik.magik_effects"""


def renew(cluster: Cluster) -> None:
    """The tables empty, and granted as the page has it, whatever a test has granted or taken away."""
    with psycopg.connect(cluster.dsn(DATABASE), autocommit=True) as connection:
        connection.execute(RENEW)
        for heading in ("# Grants", "## The producer", "## The worker", "## The observer"):
            for statement in printed(heading):
                if statement.startswith("GRANT"):
                    connection.execute(statement.encode())


def url(cluster: Cluster, role: str, **query: str) -> str:
    """The database as that role."""
    place = make_url(cluster.url(DATABASE, role)).update_query_dict(query)
    return place.render_as_string(hide_password=False)
