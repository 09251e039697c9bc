"""No value from a user, a row or a command line becomes SQL, terminal control or the structure of a log."""

from __future__ import annotations

import json
import logging
import re
from io import StringIO
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import text
from sqlalchemy.dialects.postgresql import psycopg as driver

from magik_sa import recurring, timetable
from magik_sa.cli.tables import table
from magik_sa.errors import BootError, BootRefused, MagikError
from magik_sa.home import located
from magik_sa.logs import JsonFormatter, say
from magik_sa.names import Names
from magik_sa.names import table as named
from magik_sa.settings import schema
from magik_sa.testing.clock import _older

HOSTILE = {
    "markup": "<script>alert('x')</script>[bold red]",
    "an escape sequence": "\x1b[2J\x1b]0;title\x07",
    "a second line": 'x\r\nevent=ready job_id="1"',
    "NUL": "a\0b",
    "right to left": "\u202egnp.exe\u2066",
    "no width": "pay\u200bments\ufeff",
    "a separator of lines": "one\u2028two\u2029three\x85four\x0bfive",
    "C1 control": "\x9b31m\x90",
    "fields": 'x event=ready classes="a" \\',
    "an open quote": '"',
    "nothing": "",
    "no character": "\ud800",
    "braces": "%s %(name)s {} {jobs} :name ${x}",
    "letters": "Zahlungen für 🦄",
}
EACH = pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE.keys())
FIELD = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|[^\s"]+)(?: |$)')


@pytest.fixture
def written(request: pytest.FixtureRequest) -> Any:
    """What a handler of the worker's own writes, as bytes; its format is the test's parameter."""
    out = StringIO()
    handler, logger = logging.StreamHandler(out), logging.getLogger("magik_sa")
    handler.setFormatter(JsonFormatter() if request.param == "json" else logging.Formatter("%(levelname)s %(message)s"))
    logger.addHandler(handler)
    yield lambda: out.getvalue().encode("utf-8", "surrogatepass")
    logger.removeHandler(handler)


@EACH
@pytest.mark.parametrize("written", ["text"], indirect=True)
def test_logging_an_event_is_one_line_with_the_fields_that_were_given(written: Any, hostile: str) -> None:
    say(logging.WARNING, "seen", job_class=hostile, queue=hostile, count=1)
    line = written()
    assert line.count(b"\n") == 1
    assert all(0x20 <= byte < 0x7F for byte in line.rstrip(b"\n"))
    fields = FIELD.findall(line.decode().removeprefix("WARNING ").rstrip("\n"))
    read = {key: json.loads(value) if value.startswith('"') else value for key, value in fields}
    assert read == {"event": "seen", "job_class": hostile, "queue": hostile, "count": "1"}


@EACH
@pytest.mark.parametrize("written", ["json"], indirect=True)
def test_logging_as_json_is_one_object_a_line(written: Any, hostile: str) -> None:
    say(logging.WARNING, "seen", job_class=hostile, late_s=float("inf"), none=float("nan"))
    line = written()
    assert line.count(b"\n") == 1
    assert line.isascii()
    read = json.loads(line, parse_constant=pytest.fail)
    assert (read["event"], read["job_class"], read["late_s"], read["none"]) == ("seen", hostile, "inf", "nan")


@EACH
def test_an_error_is_one_line_that_commands_nothing(hostile: str) -> None:
    error = MagikError("MAGIK_SETTING_INVALID", f"queue {hostile} is none.", remedy=hostile)
    assert str(error).isprintable()
    assert error.what == f"queue {hostile} is none."
    refused = BootRefused([BootError("MAGIK_NO_JOBS", hostile), BootError("MAGIK_NO_JOBS", hostile)])
    lines = str(refused).split("\n")
    assert len(lines) == 2
    assert all(line.isprintable() and line.startswith("MAGIK_NO_JOBS: ") for line in lines)


@EACH
def test_a_row_of_a_table_is_one_line_that_commands_nothing(hostile: str) -> None:
    heads, *rows = table(("queue", "class"), [(hostile, hostile), ("a", "b")]).split("\n")
    assert (heads.split(), len(rows)) == (["queue", "class"], 2)
    assert all(row.isprintable() for row in rows)
    if hostile.isprintable():
        assert hostile in rows[0]


SCHEMAS = (
    "jobs",
    "Jobs",
    'a"b',
    "a'b",
    "a.b",
    "a;--",
    "%s %(queue)s %%",
    "{} {jobs} {schema}",
    ":name \\:x",
    "\x1b[2J\r\n\u202e",
    '"',
    "x" * 63,
)


@pytest.fixture(params=SCHEMAS)
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A schema of that name is configured; what it is called in SQL."""
    monkeypatch.setenv("MAGIK_SCHEMA", request.param)
    assert schema() == request.param
    return '"' + str(request.param).replace('"', '""') + '".'


DIALECT: Any = driver.dialect()  # type: ignore[no-untyped-call]


def compiled(statement: Any) -> tuple[str, set[str]]:
    """The SQL that the server gets, and the names of its parameters."""
    made = statement.compile(dialect=DIALECT)
    return str(made) % {name: f"<{name}>" for name in made.params}, set(made.params)


def test_naming_a_schema_is_read_as_one_identifier(place: str) -> None:
    sql, names = compiled(timetable.sql.__wrapped__(recurring.PAUSE))
    assert (f"UPDATE {place}magik_job_schedules SET" in sql, names) == (True, {"name", "by"})
    sql, names = compiled(text(located("SELECT :x FROM {schema}magik_jobs")))
    assert (sql, names) == (f"SELECT <x> FROM {place}magik_jobs", {"x"})
    for statement in _older():
        sql, names = compiled(text(statement))
        assert (sql.startswith(f"UPDATE {place}magik_"), names) == (True, {"seconds"})
    jobs = named("magik_jobs", schema())
    sql = Names(jobs, jobs, jobs, jobs, 1).sql("SELECT %(x)s FROM {jobs}").decode() % {"x": "<x>"}
    assert sql == f"SELECT <x> FROM {place}magik_jobs"


@pytest.mark.parametrize("name", ["x" * 64, "é" * 32, "a\0b", "\ud800"])
def test_naming_two_schemas_are_never_taken_for_one(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The server would cut the name at 63 bytes, and find the tables of another."""
    monkeypatch.setattr("os.environ", {"MAGIK_SCHEMA": name})
    with pytest.raises(BootError, match="MAGIK_SETTING_INVALID: schema=.*63 bytes"):
        schema()


def test_a_narrow_terminal_hides_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.setenv("COLUMNS", "20")
    drawn = table(["id", "queue", "errors"], [[UUID(int=7), "payments", 1]], ("errors",))
    assert str(UUID(int=7)) in drawn
    assert "payments" in drawn
