"""What an operator sees: the screens of docs/operate.md, taken from the program itself on a terminal.

python -m examples.screens              # writes docs/screens/*.svg
python -m examples.screens --to FOLDER

A queue in trouble is set up on a PostgreSQL of its own (`magik_sa[embedded]`, or --database-url of an empty database):
a worker with more to do than it can, dead letters, a schedule that is paused, and an import script that has left its
transaction open. Nothing in the pictures is drawn by hand.
"""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import StringIO
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Mapped, Session

from examples.settlement.database import server
from magik_sa import Job, Retries, Schedule, arg

ROOT = Path(__file__).resolve().parents[1]
ROWS, COLUMNS = 50, 126
PATIENCE = 30.0  # seconds that the worker may take to start
SCREENS = {
    "status": (("jobs", "status"),),
    "list": (("jobs", "list", "--state", "expired", "--limit", "4"), ("workers",)),
    "doctor": (("doctor", "--oldest-transaction", "1s"),),
}


class Report(Job, policy="system", queue="reports"):
    """Takes long enough to be seen at work."""

    seconds: Mapped[float] = arg(default=60.0)

    def perform(self, session: Session) -> None:  # noqa: ARG002
        time.sleep(self.seconds)


class PayOut(Job, policy="system", queue="payments", priority=10):
    """Fails: its provider does not answer."""

    retries = Retries(times=1, base="1ms", jitter=0)
    account: Mapped[int] = arg()

    def perform(self, session: Session) -> None:  # noqa: ARG002
        raise TimeoutError(f"no answer from the provider for account {self.account}")


class Nightly(Job, policy="system", queue="reports"):
    """Every night at three."""

    schedule = Schedule(cron="0 3 * * *", zone="Europe/Paris")

    def perform(self, session: Session) -> None: ...


@click.command()
@click.option("--to", type=click.Path(file_okay=False, path_type=Path), default=ROOT / "docs" / "screens")
@click.option("--database-url", help="a database with nothing in it [one of an embedded PostgreSQL]")
def main(to: Path, database_url: str | None) -> None:
    """Take the screens."""
    to.mkdir(parents=True, exist_ok=True)
    with server(database_url) as place:
        url = place.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
        os.environ["MAGIK_DATABASE_URL"] = url
        with trouble(url):
            for name, commands in SCREENS.items():
                shown = "".join(screen(*command) for command in commands)
                (to / f"{name}.svg").write_text(drawn(shown), encoding="utf-8")
                print(f"{to / name}.svg", flush=True)


@contextmanager
def trouble(url: str) -> Iterator[None]:
    """The queue while it is looked at."""
    subprocess.run([sys.executable, "-m", "magik_sa.cli", "migrate"], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    engine = create_engine(url, connect_args={"application_name": "import script"})
    with Session(engine) as session, session.begin():
        session.add_all([PayOut(account=account) for account in range(4)])
    command = [sys.executable, "-m", "magik_sa.worker", "examples.screens", "--concurrency", "4"]
    worker = subprocess.Popen(
        [*command, "--queue", "payments", "--queue", "reports"], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    try:
        with engine.connect() as looking:
            until(lambda: looking.scalar(text("SELECT count(*) FROM magik_jobs WHERE expired_at IS NULL")) == 0)
            looking.commit()
            with Session(engine) as session, session.begin():
                session.add_all([Report() for _ in range(9)])
                session.add_all([Report(delay="20m"), PayOut(account=5, queue="refunds")])
                session.execute(text("UPDATE magik_job_schedules SET paused_at = now(), paused_by = 'ada'"))
            until(lambda: looking.scalar(text("SELECT count(*) FROM magik_claims")) == 4)
            looking.commit()
            looking.execute(text("SELECT FROM magik_jobs WHERE queue = 'refunds' FOR UPDATE"))
            until(lambda: looking.scalar(text("SELECT clock_timestamp() > now() + interval '2 s'")))
            yield
    finally:
        worker.kill()
        worker.wait()
        engine.dispose()


def until(reached: Callable[[], object]) -> None:
    """Until it is so."""
    deadline = time.monotonic() + PATIENCE
    while not reached():
        if time.monotonic() > deadline:
            raise click.ClickException("The worker does not do what it should; look at its log.")
        time.sleep(0.05)


def screen(*words: str) -> str:
    """What the program writes to a terminal, with its colours, below the command itself."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (ROWS, COLUMNS))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    with subprocess.Popen(
        [sys.executable, "-m", "magik_sa.cli", *words],
        cwd=ROOT,
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ):
        os.close(theirs)
        written = b""
        with suppress(OSError):  # Linux says so when the other side is closed
            while part := os.read(ours, 65_536):
                written += part
    os.close(ours)
    return f"$ magik {' '.join(words)}\n{written.decode().replace(chr(13), '')}\n"


def drawn(shown: str) -> str:
    """The same as a picture."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    console.print(Text.from_ansi(shown.rstrip()))
    return console.export_svg(title="magik")


if __name__ == "__main__":
    main(prog_name="python -m examples.screens")
