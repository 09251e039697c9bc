"""Secrets are in no repr, no error and no traceback, however somebody has spelt the URL that holds them."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, create_engine, make_url
from sqlalchemy.orm import scoped_session, sessionmaker

from magik_sa import Worker
from magik_sa.boot import Booted, import_modules
from magik_sa.doctor import Subject
from magik_sa.errors import BootRefused, MagikError
from magik_sa.sessions import Place, find
from magik_sa.settings import Settings, read
from magik_sa.unreached import unreached
from magik_sa.url import conninfo, parse, shown
from magik_sa.worker.letters import Assignment

SECRET = "hunter2"
READABLE = {
    "in its place": f"postgresql://u:{SECRET}@h:1/d",
    "encoded": f"postgresql+psycopg://u:%68unter2%40{SECRET}@h:1/d",
    "in the query": f"postgresql://u@h:1/d?password={SECRET}",
    "in the query, encoded": "postgresql://u@h:1/d?password=%68unter2",
    "in both": f"postgresql://u:{SECRET}@h:1/d?password={SECRET}",
    "of a key": f"postgresql://u@h:1/d?sslpassword={SECRET}",
    "of a client": f"postgres://u@h:1/d?oauth_client_secret={SECRET}",
    "old scheme": f"postgres://u:{SECRET}@h:1/d",
    "a slash in it": f"postgresql://u:a/{SECRET}@h:1/d",
}
REFUSED = {
    "an @ in it": f"postgresql://u:p@{SECRET}@h/d",
    "an @ at its end": f"postgresql://u:{SECRET}@@h/d",
    "keywords": f"host=h password={SECRET} dbname=d",
    "another database": f"mysql://u:{SECRET}@h/d",
    "no scheme": f"u:{SECRET}@h/d",
    "for a port": f"postgresql://u:{SECRET}/d",
    "a word that is none": f"postgresql://u:{SECRET}@h/d?colour={SECRET}",
    "blank": f" postgresql://u:{SECRET}@h/d",
}


def every_word(error: BaseException) -> str:
    """What a traceback shows, and the errors behind it that it does not."""
    hidden = [error.__cause__, error.__context__]
    return "".join([*traceback.format_exception(error), *(f"{each!r}{each}" for each in hidden)])


@pytest.mark.parametrize("url", READABLE.values(), ids=READABLE.keys())
def test_a_url_is_shown_without_its_password(url: str) -> None:
    place = parse(url)
    assert SECRET in conninfo(place)  # it is used
    for text in (shown(place), str(unreached(place, OSError("no")))):
        assert SECRET not in text
        assert "h:1/d" in text
    assert SECRET not in shown(
        make_url(url.replace("postgres://", "postgresql://"))
    )  # of an engine of the application's


@pytest.mark.parametrize("url", REFUSED.values(), ids=REFUSED.keys())
def test_a_url_that_is_refused_is_not_repeated(url: str) -> None:
    with pytest.raises(MagikError, match="MAGIK_DATABASE_URL_INVALID") as refused:
        conninfo(parse(url))
    assert SECRET not in every_word(refused.value)


@pytest.mark.parametrize("url", READABLE.values(), ids=READABLE.keys())
def test_what_a_worker_is_made_of_shows_no_password(url: str) -> None:
    worker = Worker(url, locking_url=url)
    place = find(worker.settings, None, 1)
    locking = conninfo(url)
    booted = Booted(worker.settings, place, locking, shown(place.engine.url), {}, {}, 1)
    assignment = Assignment(locking, None, "a", "w", ("q",), (), 1, 1.0, 1.0)
    subject = Subject(None, locking)  # type: ignore[arg-type]
    for each in (worker, worker.settings, booted, assignment, subject):
        assert SECRET not in f"{each!r}{each}"
    place.leave()


def test_an_application_s_engine_is_not_shown_with_a_booted_worker() -> None:
    engine = create_engine(f"postgresql+psycopg://u@h/d?password={SECRET}")
    place = Place(engine, scoped_session(sessionmaker(engine)), ours=False)
    assert SECRET not in repr(Booted(Settings(), place, SECRET, "", {}, {}, 1))


MISSPELT: list[dict[str, Any]] = [
    {"databse_url": READABLE["in its place"]},
    {"password": SECRET},
    {"database_url": [SECRET]},
    {"locking_url": {SECRET: SECRET}},
]


@pytest.mark.parametrize("given", MISSPELT)
def test_a_misspelt_option_is_named_without_its_value(given: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(BootRefused) as refused:
        read(given, {}, tmp_path)
    assert next(iter(given)).replace("_", "-") in str(refused.value)
    assert SECRET not in str(refused.value)
    assert SECRET not in "".join(traceback.format_exception(refused.value))


def test_a_url_in_the_place_of_a_module_is_not_repeated() -> None:
    (finding,) = import_modules((READABLE["in its place"],))
    assert finding.code == "MAGIK_MODULE_IMPORT_FAILED"
    assert SECRET not in str(finding)


def test_an_engine_of_ours_hides_the_parameters_of_a_failed_statement() -> None:
    place = find(Settings(database_url="postgresql://h/d"), None, 1)
    assert place.engine.hide_parameters
    assert isinstance(place.engine.url, URL)
    place.leave()
