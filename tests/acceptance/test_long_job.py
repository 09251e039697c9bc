"""The long job of the examples, with short chunks: each is done once, whatever happens to its workers."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from examples.long_job import Base, Chunk, Program
from tests.tools.workers import ROOT, environment

CHUNKS, SECONDS = 60, 0.2  # a fifth of them takes longer than a busy machine may keep the program waiting


def play(url: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "examples.long_job", "--chunks", str(CHUNKS), "--seconds", str(SECONDS)]
    return subprocess.run(
        [*command, "--database-url", url],
        cwd=ROOT,
        env=environment(url, None, {}),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.slow
def test_through_three_deploys_and_a_kill_each_chunk_is_done_once(empty_database: str) -> None:
    done = play(empty_database)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"^deploy after \d+ chunks: the old worker ended with 0$", done.stdout, re.MULTILINE)) == 3
    assert len(re.findall(r"^SIGKILL after \d+ chunks$", done.stdout, re.MULTILINE)) == 1
    engine = create_engine(empty_database)
    with engine.connect() as connection:
        chunks = connection.execute(text("SELECT number, total, worker FROM chunks ORDER BY id")).all()
        assert connection.scalar(text("SELECT count(*) FROM magik_jobs")) == 0
    engine.dispose()
    assert [(number, total) for number, total, _ in chunks] == [(n, n * n) for n in range(CHUNKS)]
    shares = [worker for worker, _ in groupby(worker for _, _, worker in chunks)]
    assert len(shares) == len(set(shares)) == 5, "five workers, one after the other"


def test_a_chunk_done_twice_or_not_at_all_would_be_noticed(empty_database: str, tmp_path: Path) -> None:
    """The control of the test above."""
    with Program(empty_database, 3, 0.1, tmp_path) as program, program.sessions.begin() as session:
        assert set(Base.metadata.tables) == {"chunks"}
        session.add_all(Chunk(number=number, total=0, worker=1) for number in (0, 2, 2))
        session.commit()
        assert program.wrong() == [1, 2]
