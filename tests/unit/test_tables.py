"""Tables on a terminal: words stay whole at any width, and what there is no room for is named."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from io import StringIO
from uuid import UUID

import pytest
from rich.console import Console

from magik_sa.acting import Listed
from magik_sa.cli.listed import _told
from magik_sa.cli.tables import UNLIMITED, fitted, laid_out, short

ID = "0194a0de-8a00-7000-8000-000000000001"
COLUMNS = ("id", "class", "queue", "state", "due", "errors", "last error")
ROW = (
    ID,
    "SettleBatch",
    "payments",
    "scheduled",
    "2024-11-30T01:34:05Z",
    3,
    "TimeoutError: no answer from the provider",
)


def lines(width: int, columns: tuple[str, ...], row: tuple[object, ...]) -> tuple[list[str], list[str]]:
    drawn, missing = laid_out(columns, [row], ("errors",), width)
    out = StringIO()
    Console(file=out, width=width, highlight=False).print(drawn)
    return out.getvalue().splitlines(), missing


@pytest.mark.parametrize(("width", "gone"), [(80, ["due", "errors", "last error"]), (100, ["last error"])])
def test_on_a_narrow_terminal_columns_go_and_no_word_is_broken(width: int, gone: list[str]) -> None:
    shown, missing = lines(width, COLUMNS, ROW)
    assert missing == gone
    assert len(shown) == 2
    assert max(map(len, shown)) <= width
    assert shown[0].split() == [name for name in COLUMNS if name not in gone]
    assert shown[1].split()[:4] == [ID, "SettleBatch", "payments", "scheduled"]


def test_free_text_is_folded_between_words() -> None:
    shown, missing = lines(130, COLUMNS, ROW)
    assert missing == []
    assert " ".join(line[99:].strip() for line in shown[1:]) == ROW[-1]
    assert "2024-11-30 01:34Z" in shown[1]


def test_names_are_cut_where_nothing_else_can_go_and_ids_never() -> None:
    shown, _ = lines(60, ("id", "class", "queue"), (ID, "A" * 40, "payments"))
    assert ID in shown[1]
    assert "payments" in shown[1]
    assert "A…" in shown[1]


def test_a_pipe_has_room_for_all_of_it_as_it_is() -> None:
    shown, missing = lines(UNLIMITED, COLUMNS, ROW)
    assert (len(shown), missing, shown[1].split()[4]) == (2, [], ROW[4])


def test_a_time_of_today_has_no_date() -> None:
    now = datetime.now(UTC)
    assert short(f"{now:%Y-%m-%d}T01:34:05Z") in {"01:34:05Z", f"{now:%Y-%m-%d} 01:34Z"}  # midnight may pass
    assert short("2024-01-02T01:34:05Z") == "2024-01-02 01:34Z"
    assert short("infinity") == "infinity"


class Terminal(StringIO):
    """Takes what is written, and says that it is one."""

    def isatty(self) -> bool:
        return True


def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have stdout be a terminal of 80 columns."""
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", "80")


def dead(number: int, why: str | None) -> Listed:
    """A dead letter of a list."""
    moment = "2024-11-30T01:34:05Z"
    return Listed(
        id=UUID(int=number),
        version=1,
        job_class="SettleBatch",
        queue="payments",
        state="expired",
        priority=50,
        run_at=moment,
        enqueued_at=moment,
        error_count=6,
        failed_at=moment,
        expired_at=moment,
        finished_at=None,
        why=why,
    )


def test_an_error_for_which_there_is_no_room_stands_below_with_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow(monkeypatch)
    whole = "TimeoutError: no answer from the provider within 30 seconds"
    told = re.sub(r"\x1b\[\d*m", "", _told([dead(1, whole), dead(2, None)], more=True))
    jobs, errors = told.split("\n\n")
    assert [line.split()[0] for line in jobs.splitlines()] == ["id", str(UUID(int=1)), str(UUID(int=2)), "(too"]
    assert "last error" not in jobs
    head, *folded, hint, more = errors.splitlines()
    assert head.split() == ["id", "last", "error"]
    assert folded[0].startswith(str(UUID(int=1)))
    assert " ".join(line[38:] for line in folded) == whole
    assert (hint, more) == ("magik jobs show ID has the whole of an error.", "There are more; --limit shows them.")
    assert max(map(len, told.splitlines())) <= 80


def test_without_an_error_there_is_nothing_below(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow(monkeypatch)
    assert "\n\n" not in _told([dead(1, None)], more=False)


def test_in_a_pipe_an_error_stands_in_its_line() -> None:
    (head, line) = _told([dead(1, "TimeoutError: no answer")], more=False).splitlines()
    assert head.endswith("last error")
    assert line.endswith("  TimeoutError: no answer")


@pytest.mark.parametrize("room", [1, 20, 80, 200])
def test_there_is_a_width_for_whatever_is_shown(room: int) -> None:
    assert all(width > 0 for width in fitted({"id": 36, "class": 11, "last error": 60}, room).values())
