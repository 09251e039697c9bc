"""The application's logging stays as it was configured, and each event of a worker is one line with stable fields."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

from tests.tools.events import faults, types
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess

CONFIGURED = """
    import json
    import logging.config

    class Json(logging.Formatter):
        def format(self, record):
            told = {"logger": record.name, "said": record.getMessage(), **getattr(record, "magik", {})}
            return json.dumps(told, default=str)

    FILTERS = []
    logging.config.dictConfig({
        "version": 1,
        "formatters": {"json": {"()": Json}},
        "handlers": {"out": {"class": "logging.StreamHandler", "formatter": "json", "filters": FILTERS}},
        "root": {"handlers": ["out"], "level": "WARNING"},
        "loggers": {"shop": {"level": "INFO"}, "magik_sa": {"level": "INFO"}},
    })
"""
UNNAMED = CONFIGURED.replace('"WARNING"', '"INFO"').replace(', "magik_sa": {"level": "INFO"}', "")
PACKAGE = """
    from magik_sa import Job
"""
JOBS = """
    log = logging.getLogger("shop")

    class Talking(Job, policy="system"):
        def perform(self, session):
            log.info("handlers %s", logging.getLogger("magik_sa").handlers)
"""
FIELDS = {"job_id", "job_class", "queue", "attempt", "duration_ms", "outcome"}


def worked(database: str, engine: Engine, folder: Path, *parts: str) -> str:
    """What a worker of these parts of a module, in their order, writes to stderr while it does three jobs."""
    (folder / "talking.py").write_text("".join(map(textwrap.dedent, parts)))
    with engine.begin() as connection:
        connection.execute(
            text("INSERT INTO magik_jobs (job_class, queue) SELECT 'Talking', 'default' FROM generate_series(1, 3)")
        )
    with (
        WorkerProcess(database, "talking", path=folder) as worker,
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as look,
    ):
        until(lambda: not look.scalar(text("SELECT count(*) FROM magik_jobs")), what="the jobs are done")
        assert worker.terminate() == 0
    return worker.stderr()


@pytest.mark.parametrize("configured", [CONFIGURED, UNNAMED], ids=["our logger named", "our logger not named"])
@pytest.mark.parametrize("before", [True, False], ids=["before the import", "after the import"])
def test_the_configuration_of_the_application_stands_and_each_line_comes_once(
    database: str, engine: Engine, tmp_path: Path, configured: str, before: bool
) -> None:
    """`dictConfig` disables every logger that is there when it is called, unless it names it: ours comes later."""
    parts = [configured, PACKAGE] if before else [PACKAGE, configured]
    lines: list[dict[str, Any]] = [*map(json.loads, worked(database, engine, tmp_path, *parts, JOBS).splitlines())]
    talked = [line["said"] for line in lines if line["logger"] == "shop"]
    ended = [line for line in lines if line.get("event") == "job_finished"]
    assert talked == ["handlers []"] * 3
    assert len(ended) == len({line["job_id"] for line in ended}) == 3
    assert all(line.keys() >= FIELDS and line["outcome"] == "finished" for line in ended)
    assert [line["event"] for line in lines if line["logger"] == "magik_sa" and line not in ended] == [
        "ready",
        "draining",
        "drained",
    ]


def test_logging_that_raises_costs_lines_and_nothing_else(database: str, engine: Engine, tmp_path: Path) -> None:
    broken = UNNAMED.replace("FILTERS = []", "FILTERS = [lambda record: record.request_id]")
    said = worked(database, engine, tmp_path, broken, PACKAGE, JOBS.replace("log.info(", "print("))
    assert said.count("AttributeError: 'LogRecord' object has no attribute 'request_id'") == 6


EVERYTHING = """
    from sqlalchemy.orm import Mapped
    from magik_sa import Discard, Job, Retries, Schedule, Snooze, arg

    class Kinds(Job, policy="system"):
        retries = Retries(times=1, base="10ms")
        how: Mapped[str] = arg()
        word: Mapped[str] = arg()
        def perform(self, session):
            if self.how == "snooze" and not self.version > 2:
                raise Snooze("50ms")
            if self.how == "discard":
                raise Discard(self.word)
            if self.how == "fail":
                raise ValueError(self.word)

    class Odd(Job, policy="system", name="odd\\x1b[2J\\r\\n\\u202e class"):
        schedule = Schedule(every="1s")
        def perform(self, session): ...
"""


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_every_line_of_a_worker_is_an_event_of_the_page_with_its_fields(
    database: str, engine: Engine, tmp_path: Path, log_format: str
) -> None:
    """Whatever the application has configured: the format was asked for."""
    (tmp_path / "kinds.py").write_text(textwrap.dedent(CONFIGURED) + textwrap.dedent(EVERYTHING))
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO magik_jobs (job_class, queue, args) SELECT 'Kinds', 'default',"
                " jsonb_build_object('how', how, 'word', 's3cret') FROM unnest(CAST(:how AS text[])) how"
            ),
            {"how": ["finish", "snooze", "fail", "discard"]},
        )
    with WorkerProcess(database, "kinds", path=tmp_path, log_format=log_format, queue=["default", "ü"]) as worker:
        for event in ("job_finished", "job_snoozed", "job_retry", "job_expired", "schedule_fired"):
            worker.wait_log(rf"\b{event}\b")
        assert worker.terminate() == 0
    lines = worker.stderr().splitlines()
    read = [*map(json.loads, lines)] if log_format == "json" else [*map(fields_of, lines)]
    assert [fault for line in read for fault in faults(line)] == []
    assert {"ready", "draining", "drained", "schedule_fired"} <= {line["event"] for line in read}
    assert all(line["job_id"] for line in read if line["event"].startswith("job_"))
    failed = next(line for line in read if line["event"] == "job_retry")
    source = (tmp_path / "kinds.py").read_text().splitlines()
    assert failed["where"] == f"{tmp_path / 'kinds.py'}:{source.index('            raise ValueError(self.word)') + 1}"
    assert "s3cret" not in worker.stderr()
    assert worker.stderr().isascii()


def fields_of(line: str) -> dict[str, Any]:
    """A line of text, with the types that the page says."""
    day, moment, level, *_ = line.split(" ", 3)
    pairs = re.findall(r'(\w+)=("(?:[^"\\]|\\.)*"|[^\s"]+)(?: |$)', line.split(" ", 3)[3])
    assert " ".join(f"{name}={value}" for name, value in pairs) == line.split(" ", 3)[3]
    told = {name: json.loads(value) if value.startswith('"') else value for name, value in pairs}
    known = types()
    typed = {name: value if name == "event" else known[name][-1](value) for name, value in told.items()}
    return {**typed, "time": f"{day} {moment}", "level": level, "logger": "magik_sa"}


@pytest.mark.parametrize("module", ["nowhere", "empty"])
def test_what_keeps_a_worker_from_starting_is_json_where_that_was_asked_for(
    database: str, tmp_path: Path, module: str
) -> None:
    (tmp_path / "empty.py").touch()
    with WorkerProcess(database, module, path=tmp_path, env={"MAGIK_LOG_FORMAT": "json"}) as worker:
        assert worker.wait() == 2
    (line,) = map(json.loads, worker.stderr().splitlines())
    assert faults(line) == []
    assert (line["event"], line["field"], line["code"]) == ("refused", "modules", line["error"].split(":")[0])
