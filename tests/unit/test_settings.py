"""Options: where they come from, which one counts, and what a bad one gets."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from magik_sa.errors import BootError, BootRefused
from magik_sa.settings import pyproject, read
from magik_sa.worker import Worker


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project whose pyproject says a few things, and a folder inside it."""
    (tmp_path / "pyproject.toml").write_text(
        '[tool.magik_sa]\npoll-interval = "9s"\nconcurrency = 3\nqueues = ["a", "b"]\nschema = "jobs"\n'
    )
    (tmp_path / "inside").mkdir()
    return tmp_path / "inside"


def test_the_nearest_pyproject_is_found(folder: Path) -> None:
    assert read({}, {}, folder).poll_interval == timedelta(seconds=9)
    assert read({}, {}, folder).queues == ("a", "b")
    assert pyproject(folder)["schema"] == "jobs"


def test_environment_outweighs_pyproject_and_what_is_given_outweighs_both(folder: Path) -> None:
    environ = {"MAGIK_CONCURRENCY": "5", "MAGIK_QUEUES": "x, y"}
    assert read({}, environ, folder).concurrency == 5
    assert read({}, environ, folder).queues == ("x", "y")
    assert read({"concurrency": "7", "queues": None}, environ, folder).concurrency == 7


def test_maintenance_is_asked_for_and_the_end_of_idle_transactions_is_a_part_of_it(tmp_path: Path) -> None:
    environ = {"MAGIK_MAINTENANCE": "1", "MAGIK_END_IDLE_TRANSACTIONS": "10m"}
    assert read({}, environ, tmp_path).end_idle_transactions == timedelta(minutes=10)
    assert (read({}, {}, tmp_path).maintenance, read({}, {}, tmp_path).end_idle_transactions) == (False, None)
    for wrong in ({"MAGIK_END_IDLE_TRANSACTIONS": "10m"}, {**environ, "MAGIK_MAINTENANCE": "perhaps"}):
        with pytest.raises(BootRefused, match="MAGIK_SETTING_INVALID: (end-idle-transactions|maintenance)"):
            read({}, wrong, tmp_path)


def test_defaults(tmp_path: Path) -> None:
    settings = read({}, {}, tmp_path)
    assert (settings.concurrency, settings.queues) == (10, ("default",))
    assert (settings.poll_interval, settings.shutdown_timeout) == (timedelta(seconds=5), timedelta(seconds=25))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("concurrency", "0"),
        ("concurrency", "many"),
        ("concurrency", 501),
        ("processes", 0),
        ("processes", "two"),
        ("processes", 101),
        ("poll_interval", "5"),
        ("poll_interval", 5),
        ("shutdown_timeout", "-1s"),
        ("log_format", "xml"),
        ("app_name", "a\nb"),
        ("queues", ("",)),
        ("queues", ()),
        ("queues", ("q" * 500,)),
        ("queues", ("a\0b",)),
        ("queues", ("a\udcff",)),
        ("pollinterval", "5s"),
    ],
)
def test_a_bad_option_is_named(name: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(BootRefused) as refused:
        read({name: value}, {}, tmp_path)
    (finding,) = refused.value.findings
    assert finding.code == "MAGIK_SETTING_INVALID"
    assert finding.field == name
    assert re.fullmatch(rf"{name.replace('_', '-')}(=[^:=]+)?: [^=]+", finding.what), "it is named once"


def test_of_a_duration_it_is_said_once_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(BootRefused) as refused:
        read({"poll_interval": "5"}, {}, tmp_path)
    said = "poll-interval='5': not a duration (Write durations as text with units: "
    assert refused.value.findings[0].what.startswith(said)


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("poll-intervall", "; did you mean 'poll-interval'?"),
        ("poll_intervall", "; did you mean 'poll-interval'?"),
        ("queue", "; did you mean 'queues'?"),
        ("shema", "; did you mean 'schema'?"),
        ("database", "; did you mean 'database-url'?"),
        ("verbosity", "."),
    ],
)
def test_of_a_strange_key_the_file_is_named_and_what_was_meant(tmp_path: Path, key: str, meant: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f'[tool.magik_sa]\n{key} = "s3cret"\nconcurrency = 0\n')
    with pytest.raises(BootRefused) as refused:
        read({}, {}, tmp_path)
    said = {finding.field: finding.what for finding in refused.value.findings}
    strange = f"{tmp_path / 'pyproject.toml'}: [tool.magik_sa] has a key {key!r} that is none of ours{meant}"
    assert said.keys() == {"concurrency", key.replace("-", "_")}
    assert said[key.replace("-", "_")] == strange


def test_a_table_that_nobody_reads_is_refused(tmp_path: Path) -> None:
    """Its settings would go unheeded without a word."""
    (tmp_path / "pyproject.toml").write_text('[tool.magik-sa]\nqueues = "mail"\n')
    with pytest.raises(BootError, match=r"^MAGIK_SETTING_INVALID: .*pyproject.toml: nobody reads \[tool.magik-sa\]"):
        read({}, {}, tmp_path)


def test_a_file_without_tools_has_no_settings(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("tool = 3\n")
    assert read({}, {}, tmp_path) == read({}, {}, tmp_path / "nowhere")


def test_of_a_strange_keyword_it_is_said_what_was_meant(tmp_path: Path) -> None:
    with pytest.raises(BootRefused) as refused:
        read({"databse_url": "postgresql://u:s3cret@h/d"}, {}, tmp_path)
    assert refused.value.findings[0].what == "databse-url: there is no such option; did you mean 'database-url'?"


def test_all_bad_options_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(BootRefused) as refused:
        read({"concurrency": 0, "poll_interval": "soon"}, {"MAGIK_LOG_FORMAT": "xml"}, tmp_path)
    assert {finding.field for finding in refused.value.findings} == {"concurrency", "poll_interval", "log_format"}


def test_a_password_is_never_repeated(tmp_path: Path) -> None:
    with pytest.raises(BootRefused) as refused:
        read({"database_url": ["postgresql://u:secret@h/d"]}, {}, tmp_path)
    assert "secret" not in str(refused.value)


def test_a_variable_that_only_looks_like_one_of_ours_is_named(tmp_path: Path) -> None:
    with pytest.raises(BootRefused, match="did you mean MAGIK_QUEUES"):
        read({}, {"MAGIK_QUEUE": "payments"}, tmp_path)
    assert read({}, {"MAGIK_TEST_DATABASE_URL": "x"}, tmp_path).queues == ("default",)


def test_a_worker_within_a_process_is_one_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGIK_PROCESSES", "4")
    assert Worker("postgresql://u@h/d").settings.processes == 1
    assert read({}).processes == 4
    with pytest.raises(BootRefused, match="MAGIK_SETTING_INVALID: processes") as refused:
        Worker("postgresql://u@h/d", processes=4)
    assert refused.value.findings[0].field == "processes"


def test_settings_show_no_password(tmp_path: Path) -> None:
    assert "secret" not in repr(read({"database_url": "postgresql://u:secret@h/d"}, {}, tmp_path))


def test_a_broken_pyproject_is_named(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.magik_sa\n")
    with pytest.raises(Exception, match="MAGIK_SETTING_INVALID"):
        read({}, {}, tmp_path)
