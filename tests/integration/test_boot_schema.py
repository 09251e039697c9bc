"""Which versions of the tables a worker starts on."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from magik_sa import database, installed
from magik_sa.database import check_schema


@pytest.mark.parametrize(
    ("head", "codes"),
    [(installed.HEAD, []), (installed.HEAD + 1, ["MAGIK_SCHEMA_BEHIND"]), (0, ["MAGIK_SCHEMA_AHEAD"])],
)
def test_the_installed_version_is_compared_with_this_releases(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, head: int, codes: list[str]
) -> None:
    monkeypatch.setattr(database, "HEAD", head)
    with engine.connect() as connection:
        assert [finding.code for finding in check_schema(connection)] == codes
