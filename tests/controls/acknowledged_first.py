"""A job's row goes when it is begun, and not when it has ended."""

from sqlalchemy import delete
from sqlalchemy.orm import Session

from magik_sa import run as running
from magik_sa.job_session import Run
from magik_sa.recording import JOBS

from . import replace

original = running._work


def acknowledge(run: Run, session: Session) -> running.End:
    with run.begin(run.connection):
        run.connection.execute(delete(JOBS).where(JOBS.c.id == run.claimed.id))
    return original(run, session)


def take_out() -> None:
    replace(running, "_work", acknowledge)
