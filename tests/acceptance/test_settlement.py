"""The settlement example as its readers run it, and proof that its balance can be off."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import URL, NullPool, create_engine

from examples.settlement.database import migrate
from examples.settlement.models import Base
from tests.tools.server import Server
from tests.tools.waiting import until

ROOT = Path(__file__).resolve().parents[2]
ORDERS = 60
OFF = {"orders settled (ledger entries)", "orders not settled exactly once", "payments", "debits", "credits"}


class Row(NamedTuple):
    """One row of the printed balance."""

    found: str
    must_be: str
    mark: str


def command(*options: str) -> list[str]:
    size = ["--orders", str(ORDERS), "--concurrency", "4"]
    return [sys.executable, "-m", "examples.settlement", *size, *options]


def environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAGIK_", "PG"))}
    return {**kept, "TMPDIR": str(folder), "COLUMNS": "120", "NO_COLOR": "1"}


def play(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*options),
        cwd=ROOT,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def rows(printed: str) -> dict[str, Row]:
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if line[:1] == "│"]
    return {name: Row(*rest) for name, *rest in cells}


def processes_of(folder: Path) -> list[str]:
    """What still runs with this folder in its command line: a server, or what was started by one."""
    found = (process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"]))
    return [" ".join(words) for words in found if any(str(folder) in word for word in words)]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A temporary folder with a path that is short enough for the server's socket, open to the server's user."""
    with tempfile.TemporaryDirectory(prefix="demo-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def url(server: Server) -> str:
    """The tests' server, as a user that may create databases."""
    address = URL.create(
        "postgresql", server.user, server.password, server.host, server.port, server.maintenance_dbname
    )
    return address.render_as_string(hide_password=False)


@pytest.mark.slow
def test_it_balances_on_a_server_of_its_own_and_leaves_nothing(folder: Path) -> None:
    done = play(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    balance = rows(done.stdout)
    assert {row.mark for row in balance.values()} == {"ok"}
    assert balance["orders committed"].found == balance["orders settled (ledger entries)"].found == "40"
    assert balance["traces of the 20 orders rolled back"].found == "0"
    assert Decimal(balance["debits"].found) == Decimal(balance["credits"].found) > 0
    assert int(balance["jobs begun again after the kill"].found) >= 1
    assert float(balance["seconds from the kill to the first again"].found) < 5
    assert balance["exit code of the other worker after SIGTERM"].found == "0"
    assert re.search(r"SIGKILL to worker-\d .* jobs certainly running: [1-9]", done.stdout)
    assert "rolled back on purpose 20/20" in done.stdout
    assert f"All {len(balance)} lines are as they must be." in " ".join(done.stdout.split())
    assert not list(folder.glob("settlement-*"))
    assert not processes_of(folder)


@pytest.mark.parametrize("sabotage", ["lost-job", "booked-twice"])
def test_a_spoilt_run_does_not_balance(folder: Path, url: str, sabotage: str) -> None:
    done = play(folder, "--database-url", url, "--sabotage", sabotage)
    assert done.returncode == 1, done.stdout + done.stderr
    balance = rows(done.stdout)
    wrong = {name for name, row in balance.items() if row.mark == "WRONG"}
    assert wrong >= OFF, done.stdout + done.stderr
    assert balance["orders not settled exactly once"].found == "1"
    assert wrong == set(re.findall(r"^Does not balance: ([^:]+):", done.stdout, re.MULTILINE))


def test_interrupted_it_leaves_nothing(folder: Path) -> None:
    with subprocess.Popen(
        command(),
        cwd=ROOT,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as demo:
        assert demo.stdout is not None
        assert any("SIGKILL to worker" in line for line in demo.stdout)
        workers = [child.pid for child in psutil.Process(demo.pid).children() if "magik_sa.worker" in child.cmdline()]
        os.killpg(demo.pid, signal.SIGINT)
        rest = demo.stdout.read()
    assert workers
    assert demo.returncode == 1, rest
    assert "Aborted!" in rest
    assert not list(folder.glob("settlement-*"))
    assert not [pid for pid in workers if psutil.pid_exists(pid)]
    until(lambda: not processes_of(folder), what="the server gone")


def test_its_migrations_are_its_models(empty_database: str) -> None:
    migrate(empty_database)
    with create_engine(empty_database, poolclass=NullPool).connect() as connection:
        context = MigrationContext.configure(connection, opts={"include_name": ours})
        assert compare_metadata(context, Base.metadata) == []


def ours(name: str | None, kind: str, _: object) -> bool:
    """The queue's tables are no business of the application's models."""
    return kind != "table" or not str(name).startswith("magik_")
