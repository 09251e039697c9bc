"""A job is added at the worst moment: the worker has looked and found none, and has not raised its flag yet.

Its transaction began before the look, and so it was due then: what asks for the jobs to come does not see it.
With SECOND_LOOK=no the worker does not look once more when it has won the flag.
"""

import os

import psycopg

from magik_sa.worker.idle import Idle
from tests.tools.workers import dsn_of

from . import work

original = Idle.raise_flags
added: list[str] = []


def raise_flags(self: Idle) -> bool:
    if not added:
        added.append("Woken")
        with psycopg.connect(dsn_of(os.environ["MAGIK_DATABASE_URL"]), autocommit=True) as connection:
            connection.execute("INSERT INTO magik_jobs (job_class, run_at) VALUES ('Woken', now() - '1 s'::interval)")
    return original(self) and os.environ["SECOND_LOOK"] == "yes"


if __name__ == "__main__":
    Idle.raise_flags = raise_flags  # type: ignore[method-assign]
    work()
