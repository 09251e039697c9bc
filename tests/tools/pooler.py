"""pgbouncer between a program and the server, where the machine has it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from functools import reduce
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

import psycopg
import pytest
from sqlalchemy.engine import make_url

from .cluster import account, free_port, short_folder
from .keeper import keeper
from .waiting import until
from .workers import dsn_of

T = TypeVar("T", bound=Callable[..., Any])

HOST = "127.0.0.1"
PoolMode = Literal["transaction", "session", "statement"]
CONFIG = """
[databases]
* = host={host} port={port}

[pgbouncer]
listen_addr = {listen}
listen_port = {own_port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
pool_mode = {mode}
default_pool_size = {size}
max_client_conn = 200
logfile = {folder}/log
server_connect_timeout = 5
server_login_retry = 1
admin_users = {user}
{more}
"""


def program() -> str | None:
    """Where pgbouncer is, or None: the test is then skipped, never passed."""
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


NEEDED: Final = [
    pytest.mark.pgbouncer,
    pytest.mark.skipif(program() is None, reason="pgbouncer is not installed"),
]


def needed(test: T) -> T:
    """Mark a test that goes through one; a module of such tests has ``pytestmark = NEEDED``."""
    marked: T = reduce(lambda so_far, mark: mark(so_far), NEEDED, test)
    return marked


class Pooler:
    """``with Pooler(database, mode="transaction") as pooler:`` connect to ``pooler.url``, the same database."""

    def __init__(self, database: str, mode: PoolMode = "transaction", size: int = 20, **more: str | int) -> None:
        self.database, self.mode, self.size, self.more = make_url(database), mode, size, more
        self.port = free_port()
        self.folder = short_folder()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The database's URL through the pooler."""
        return self.database.set(host=HOST, port=self.port).render_as_string(hide_password=False)

    def __enter__(self) -> Self:
        found = program()
        assert found is not None, "pgbouncer is not installed"
        keeper.note("folder", self.folder)
        self._write()
        user = account()
        command = [found, *(["-u", user.pw_name] if user else []), str(self.folder / "ini")]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        keeper.note("group", self._process.pid)
        try:
            until(self._ready, 15, every=0.02, what="pgbouncer ready")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Stop the pooler at once and remove its files."""
        if self._process is not None:
            self._process.kill()  # it keeps nothing; what its gentle signals mean changed between releases
            self._process.wait(20)
            keeper.strike("group", self._process.pid)
            self._process = None
        shutil.rmtree(self.folder, ignore_errors=True)
        keeper.strike("folder", self.folder)

    def read_log(self) -> str:
        """What the pooler has logged so far."""
        return (self.folder / "log").read_text(errors="replace")

    def _write(self) -> None:
        host, port = self.database.host, self.database.port or 5432
        more = "\n".join(f"{name} = {value}" for name, value in self.more.items())
        (self.folder / "ini").write_text(
            CONFIG.format(
                host=host,
                port=port,
                listen=HOST,
                own_port=self.port,
                folder=self.folder,
                mode=self.mode,
                size=self.size,
                user=self.database.username,
                more=more,
            )
        )
        (self.folder / "users").write_text(f'"{self.database.username}" "{self.database.password or ""}"\n')
        if user := account():
            for path in [self.folder, *self.folder.iterdir()]:
                os.chown(path, user.pw_uid, user.pw_gid)

    def _ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"pgbouncer ended with {self._process.returncode}:\n{self.read_log()}")
        try:
            psycopg.connect(dsn_of(self.url), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True
