"""``magik doctor`` as a program: what it prints, in which order, and how it ends."""

from __future__ import annotations

import re

import psycopg
import pytest
from sqlalchemy import make_url

from magik_sa.doctor import FINDINGS
from magik_sa.doctor.outgrown import SIGNALS
from tests.tools.program import answer, magik
from tests.tools.waiting import until
from tests.tools.workers import ROOT, WorkerProcess


def run(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def test_beside_a_healthy_worker_there_is_nothing_above_a_note(database: str) -> None:
    with WorkerProcess(database, "tests.jobs.lasting", concurrency=2) as worker:
        worker.wait_ready()
        found = answer(database, "doctor")
    assert found["worst"] == "note"
    assert {each["name"] for each in found["findings"]} == {look.__name__ for look in FINDINGS}
    for each in found["findings"]:
        assert set(each) == {"name", "severity", "said", "measured", "cause", "remedy", "sql"}
        assert each["severity"] == "ok" or each["remedy"]


def test_every_finding_is_described(database: str) -> None:
    page = (ROOT / "docs" / "operate.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", page.split("## Findings")[1], re.MULTILINE) == [
        look.__name__ for look in FINDINGS
    ]


def test_every_signal_and_both_probes_are_described(database: str) -> None:
    page = (ROOT / "docs" / "ceiling.md").read_text()
    signals = [each["name"] for each in answer(database, "doctor", "--outgrown")["findings"]]
    described = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert sorted(signals) == sorted(described) == sorted(look.__name__ for look in SIGNALS)
    probes = answer(database, "doctor", "--probe", "2")["findings"]
    assert [(each["name"], each["measured"]["threads"]) for each in probes] == [
        ("queries_overlap", 2),
        ("computing", 2),
    ]
    assert all(f"`{each['name']}`" in page for each in probes)


def test_the_worst_comes_first_with_its_cause_and_its_remedy(database: str, dsn: str) -> None:
    run(dsn, "DROP INDEX magik_jobs_expired")
    lines = magik(database, "doctor", code=3).splitlines()
    assert lines[0] == "critical  schema_drift: index magik_jobs_expired (missing)"
    assert [line.split(":")[0].strip() for line in lines[1:3]] == ["cause", "remedy"]
    sql = "\n".join(lines[3 : lines.index(next(line for line in lines if line.startswith("note")))])
    assert sql.strip().endswith(";")
    run(dsn, sql)
    assert magik(database, "doctor").splitlines()[0].startswith("note ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--oldest-transaction", "10"], "--oldest-transaction"),
        (["--bogus"], "--bogus"),
        (["--probe", "0"], "--probe"),
        (["--probe", "many"], "--probe"),
        (["--probe", "--outgrown"], "--outgrown"),
    ],
)
def test_options_that_are_wrong_are_refused(database: str, words: list[str], said: str) -> None:
    line = magik(database, "doctor", *words, code=2)
    assert line.startswith("MAGIK_SETTING_INVALID: ")
    assert said in line


def test_without_tables_or_a_server_it_is_refused(empty_database: str) -> None:
    name = make_url(empty_database).database
    assert re.match(rf"MAGIK_SCHEMA_MISSING: .* of the database {name}\. ", magik(empty_database, "doctor", code=2))
    (fault,) = answer(empty_database, "jobs", "status", code=2)["errors"]
    assert fault["code"] == "MAGIK_SCHEMA_MISSING"
    unreachable = magik("postgresql://x:hidden@localhost:1/none", "doctor", code=2)
    assert unreachable.startswith("MAGIK_DATABASE_UNREACHABLE: ")
    assert "hidden" not in unreachable
    assert magik("", "jobs", "status", code=2).startswith("MAGIK_DATABASE_URL_MISSING: ")


def test_a_warning_ends_with_1_and_says_what_to_do(database: str, dsn: str) -> None:
    with psycopg.connect(dsn, application_name="report\x1b[2J") as other:
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        other.execute("SELECT count(*) FROM magik_jobs")
        pid = other.info.backend_pid
        until(lambda: other.execute("SELECT clock_timestamp() - now() > interval '1 s'").fetchone() == (True,))
        (age,) = [f["measured"]["seconds"] for f in answer(database, "doctor")["findings"] if f["measured"].get("pid")]
        # it grows older meanwhile, and is critical when it is twelve times as old
        lines = magik(database, "doctor", "--oldest-transaction", f"{age * 1000:.0f}ms", code=1).splitlines()
    assert re.match(rf"warning   oldest_transaction: .* old: process {pid} \(report.*idle in transaction$", lines[0])
    assert lines[3].strip() == f"SELECT pg_terminate_backend({pid});"
