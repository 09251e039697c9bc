"""The server of a test run, and databases of one's own on it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import conninfo, sql
from sqlalchemy.engine import URL, make_url

from .cluster import Cluster

RUN = f"magik_{secrets.token_hex(4)}"  # no two runs on one server, nor two processes of one run, share a name
COPY = "STRATEGY file_copy"  # the cheaper one where fsync is off; a given server may have much to flush for it


class Server:
    """Where the tests' databases live: an embedded cluster, or the server of MAGIK_TEST_DATABASE_URL.

    The first attributes are those that pytest-postgresql asks of a process fixture. The tests connect as `owner`, a
    role without privileges; where the given user is not a superuser, as that user.
    """

    options = ""
    template_dbname = None

    def __init__(self, url: URL, cluster: Cluster | None = None) -> None:
        self.cluster = cluster
        self.host, self.port = url.host or "127.0.0.1", url.port or 5432
        self.user, self.password = url.username or "postgres", url.password
        self.maintenance_dbname = url.database or "postgres"
        self.owner, self.owner_password = self.user, self.password

    def dsn(self, dbname: str | None = None) -> str:
        """The libpq form, as the server's user: a superuser on the embedded one."""
        name = dbname or self.maintenance_dbname
        return conninfo.make_conninfo(
            host=self.host, port=self.port, user=self.user, password=self.password, dbname=name
        )

    def url(self, dbname: str, driver: str = "psycopg") -> str:
        """The SQLAlchemy form, as the owner of the tests' databases."""
        url = URL.create(f"postgresql+{driver}", self.owner, self.owner_password, self.host, self.port, dbname)
        return url.render_as_string(hide_password=False)

    def execute(self, query: str | sql.Composable, dbname: str | None = None) -> list[tuple[Any, ...]]:
        """Run one statement outside a transaction as the server's user; its rows if it has any."""
        with psycopg.connect(self.dsn(dbname), autocommit=True) as connection:
            cursor = connection.execute(query.encode() if isinstance(query, str) else query.as_bytes(connection))
            return cursor.fetchall() if cursor.description else []

    @property
    def superuser(self) -> bool:
        """Whether the server's user may do everything; always so on the embedded one."""
        return bool(self.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")[0][0])

    def create_owner(self) -> None:
        """Make the plain role that owns the tests' databases."""
        name, password = f"{RUN}_owner", secrets.token_hex(16)
        statement = sql.SQL("CREATE ROLE {} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE PASSWORD {}")
        self.execute(statement.format(sql.Identifier(name), sql.Literal(password)))
        self.owner, self.owner_password = name, password

    def drop_owner(self) -> None:
        """Take the plain role away again."""
        self.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(self.owner)))

    def give(self, dbname: str) -> None:
        """Make the plain role the owner of a database."""
        statement = sql.SQL("ALTER DATABASE {} OWNER TO {}")
        self.execute(statement.format(sql.Identifier(dbname), sql.Identifier(self.owner)))

    @contextmanager
    def created(self, template: str | None = None) -> Iterator[str]:
        """The name of a new database, empty or cloned; dropped at the end with whoever is still connected."""
        name = sql.Identifier(made := f"{RUN}_{secrets.token_hex(4)}")
        like, how = sql.Identifier(template or "template1"), sql.SQL(COPY if self.cluster else "")
        statement = sql.SQL("CREATE DATABASE {} OWNER {} TEMPLATE {} {}")
        self.execute(statement.format(name, sql.Identifier(self.owner), like, how))
        try:
            yield made
        finally:
            self.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


@contextmanager
def running() -> Iterator[Server]:
    """The server that MAGIK_TEST_DATABASE_URL names, else an embedded one for as long as the block lasts."""
    given = os.environ.get("MAGIK_TEST_DATABASE_URL")
    if given:
        with owned(Server(make_url(given))) as server:
            yield server
    else:
        with Cluster() as cluster, owned(Server(make_url(cluster.url()), cluster)) as server:
            yield server


@contextmanager
def owned(server: Server) -> Iterator[Server]:
    """The server with its plain role, where its user may make one."""
    if not server.superuser:
        yield server
        return
    server.create_owner()
    yield server
    server.drop_owner()
