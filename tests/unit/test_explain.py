"""Every code is explained by the program itself, from the page that comes with the package."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from magik_sa.cli import commands
from magik_sa.cli.explain import PAGES, page, section
from magik_sa.errors import REMEDIES

ROOT = Path(__file__).resolve().parents[2]


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as left:
        commands.magik.main(["explain", *words], prog_name="magik")
    out, err = capsys.readouterr()
    assert left.value.code == code, err
    return err if code else out


@pytest.mark.parametrize("code", REMEDIES)
def test_every_code_has_a_section_that_ends_before_the_next(code: str) -> None:
    told = section(page(), code)
    assert len(told) > 40
    assert "## " not in told
    assert "<a id" not in told


@pytest.mark.parametrize(
    "written", ["MAGIK_SCHEMA_MISSING", "magik_schema_missing", "SCHEMA_MISSING", "MAGIK_SCHEMA_MISSING:"]
)
def test_a_code_is_explained_with_its_remedy(written: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, written)
    assert out.startswith(f"MAGIK_SCHEMA_MISSING: {REMEDIES['MAGIK_SCHEMA_MISSING']}\n\n")
    assert json.loads(said(capsys, written, "--json"))["section"] in out


def test_a_misspelt_code_is_refused_with_the_one_that_is_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean 'MAGIK_SCHEMA_MISSING'" in said(capsys, "MAGIK_SCHEMA_MISING", code=2)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("MAGIK_SCHEMA_MISING", "; did you mean 'MAGIK_SCHEMA_MISSING'?"),
        ("schedule_unknwn", "; did you mean 'MAGIK_SCHEDULE_UNKNOWN'?"),
        ("MAGIK_NO_JOB", "; did you mean 'MAGIK_NO_JOBS'?"),
        ("paused", "; did you mean 'MAGIK_SCHEDULE_PAUSED'?"),
        ("MAGIK_FOO", "."),
        ("MAGIK_XYZZY_PLUGH", "."),
    ],
)
def test_of_a_code_that_is_none_only_what_is_near_is_suggested(
    written: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """All begin alike: that makes no two of them near."""
    assert said(capsys, written, code=2).startswith(
        f"MAGIK_SETTING_INVALID: {written!r} is no code of an error{meant} "
    )


def test_the_page_goes_into_the_wheel_where_it_is_looked_for() -> None:
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    ((source, target),) = built["force-include"].items()
    assert (ROOT / source).is_file()
    assert ROOT / target == PAGES[0]
