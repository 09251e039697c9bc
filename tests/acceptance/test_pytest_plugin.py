"""The fixtures of the pytest plugin, in a small project that finds them by their entry point."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from sqlalchemy import Engine, text

from tests.tools.installed import install
from tests.tools.workers import ROOT, environment

JOBS = """
from sqlalchemy import text
from sqlalchemy.orm import Mapped, Session

from magik_sa import Job, Retries, arg


class Greet(Job, policy="system"):
    retries = Retries(times=1, backoff="constant", base="1m")
    name: Mapped[str] = arg()

    def perform(self, session: Session) -> None:
        session.execute(text("INSERT INTO greetings VALUES (:name)"), {"name": self.name})
        if self.name == "nobody":
            raise LookupError(self.name)
"""

ROLLED_BACK = """
import os

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session


@pytest.fixture(scope="session")
def engine():
    engine = create_engine(os.environ["MAGIK_DATABASE_URL"])
    yield engine
    engine.dispose()


@pytest.fixture
def magik_session(engine):
    with engine.connect() as connection:
        outer = connection.begin()
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            yield session
        outer.rollback()
"""

USED = """
import pytest
from sqlalchemy import text

from jobs import Greet


@pytest.mark.parametrize("time", ["first", "second"])  # nothing is left for the second
def test_all_of_them(time, magik_session, magik_enqueued, magik_drain, magik_clock):
    magik_session.add_all([Greet(name="ada"), Greet(name="eve", delay="1h"), Greet(name="nobody", delay="1h")])
    assert len(magik_enqueued(Greet)) == 3
    assert [ran.outcome.value for ran in magik_drain()] == ["finished"]
    magik_clock.move("1h")
    with pytest.raises(LookupError):
        magik_drain(raises=True)
    assert [job.name for job in magik_enqueued(Greet, queue="default")] == ["nobody"]
    assert magik_session.scalars(text("SELECT * FROM greetings")).all() == ["ada", "eve"]


def test_a_failure_tells_what_there_is(magik_session, magik_enqueued):
    magik_session.add(Greet(name="ada"))
    assert magik_enqueued(Greet, name="bob")
"""


def play(
    database: str, folder: Path, files: dict[str, str], *options: str, program: tuple[str, ...] = ("-m", "pytest")
) -> subprocess.CompletedProcess[str]:
    """Write the files of a project and run its tests, as somebody who has installed magik_sa would."""
    for name, source in files.items():
        (folder / name).write_text(dedent(source))
    (folder / "pytest.ini").write_text("[pytest]\n")
    installed = folder / ".installed"
    env = environment(database, None, install(installed))
    (installed / "magik_sa").symlink_to(ROOT / "magik_sa")
    (next(installed.glob("*.dist-info")) / "RECORD").write_text("magik_sa/__init__.py,,\n")
    return subprocess.run(
        [sys.executable, *program, "-W", "error", "-p", "no:cacheprovider", *options],
        cwd=folder,
        env={name: value for name, value in env.items() if not name.startswith("PYTEST_")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def greetings(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE greetings (name text)"))


@pytest.mark.usefixtures("greetings")
def test_the_fixtures_work_in_a_transaction_that_is_rolled_back(database: str, tmp_path: Path) -> None:
    files = {"jobs.py": JOBS, "conftest.py": ROLLED_BACK, "test_greet.py": USED}
    ended = play(database, tmp_path, files, "-rf")
    assert "2 passed" in ended.stdout, ended.stdout + ended.stderr
    assert "1 failed" in ended.stdout
    assert "<no Greet(name='bob') among [<Greet " in ended.stdout


def test_without_a_session_they_say_what_to_define(database: str, tmp_path: Path) -> None:
    files = {"test_it.py": "def test_it(magik_drain):\n    magik_drain()\n"}
    ended = play(database, tmp_path, files)
    assert ended.returncode == 1
    assert "MAGIK_TEST_SESSION_MISSING" in ended.stdout
    assert "Define a fixture magik_session" in ended.stdout


UNUSED = """
import sys


def test_nothing_was_imported_for_nothing(pytestconfig):
    print("plugin:", pytestconfig.pluginmanager.has_plugin("magik_sa"))
    there = {name for name in sys.modules if name.split(".")[0] in ("sqlalchemy", "pydantic", "magik_sa")}
    assert there <= {"magik_sa", "magik_sa.pytest_plugin"}
"""


@pytest.mark.parametrize("options", [(), ("-p", "no:magik_sa")], ids=["there", "left out"])
def test_who_uses_none_of_them_pays_for_none(database: str, tmp_path: Path, options: tuple[str, ...]) -> None:
    ended = play(database, tmp_path, {"test_it.py": UNUSED}, "-s", *options)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"plugin: {not options}" in ended.stdout


FROM_WITHIN = "import sys, pytest, magik_sa.testing; sys.exit(pytest.main(sys.argv[1:]))"


def test_a_program_that_has_imported_the_package_may_start_pytest(database: str, tmp_path: Path) -> None:
    """Pytest warns of a plugin's package that it cannot rewrite any more, and warnings may be errors."""
    ended = play(database, tmp_path, {"test_it.py": "def test_it(): ...\n"}, program=("-c", FROM_WITHIN))
    assert ended.returncode == 0, ended.stdout + ended.stderr
