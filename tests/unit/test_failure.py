"""Whatever an exception says, its text is bounded and storable."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import pytest

from magik_sa.errors import JobTimeout
from magik_sa.failure import LONGEST_TEXT, cut, describe, first_line, headline, kind, plain
from magik_sa.run import _performed


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


@pytest.mark.parametrize("text", ["a\x00b", "\ud800", b"\xff\xfe".decode("utf-8", "surrogateescape"), "日本" * 4_000])
def test_every_text_is_storable(text: str) -> None:
    stored = describe(raised(ValueError(text)))
    assert "\0" not in stored
    assert stored.encode("utf-8")
    assert stored.startswith("ValueError: ")


def test_what_cannot_be_stored_stays_visible() -> None:
    assert headline(ValueError("a\x00b\ud800")) == r"ValueError: a\x00b\ud800"


def test_an_exception_whose_text_raises() -> None:
    assert describe(raised(Unspeakable())).startswith("Unspeakable: <its text could not be made: RuntimeError>")


def test_sixty_megabytes_are_cut() -> None:
    stored = describe(raised(ValueError("x" * 60_000_000)))
    assert len(stored.encode()) < LONGEST_TEXT
    assert "60,000,000 characters in all" in stored


def test_five_thousand_frames_are_cut() -> None:
    def deeper() -> None:
        deeper()

    with pytest.raises(RecursionError) as caught:
        deeper()
    assert len(describe(caught.value).encode()) <= LONGEST_TEXT + 100


def ours(work: Callable[[], None]) -> BaseException:
    """What a job raises, as a worker's thread gets it: its first frame is the package's."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        _performed(work)
    own = caught.value.__traceback__
    return caught.value.with_traceback(own and own.tb_next)


def broken() -> None:
    raise ValueError("of the application")


def test_a_traceback_begins_with_the_applications_first_frame() -> None:
    stored = describe(ours(broken)).splitlines()
    assert [line.strip() for line in stored[1:]] == [
        f'File "{__file__}", line {broken.__code__.co_firstlineno + 1}, in broken',
        'raise ValueError("of the application")',
    ]


def test_frames_of_the_package_below_the_applications_stay() -> None:
    stored = describe(ours(lambda: cut(None, 1)))  # type: ignore[arg-type]
    assert "in <lambda>" in stored.splitlines()[1]
    assert "in cut" in stored


def test_the_last_line_of_a_time_limit_is_the_applications() -> None:
    def verdict() -> None:
        try:
            broken()
        except ValueError as error:
            raise JobTimeout("MAGIK_JOB_TIMEOUT", "It lasted longer than 1s.") from error

    stored = describe(ours(verdict))
    assert stored.splitlines()[-1].strip() == 'raise ValueError("of the application")'


def test_an_error_that_is_all_the_packages_keeps_its_frames() -> None:
    assert "in _performed" in describe(ours(None))  # type: ignore[arg-type]


def test_a_chain_of_two_hundred_is_cut() -> None:
    error: BaseException | None = None
    for n in range(200):
        link = ValueError(str(n))
        link.__cause__ = error
        error = link
    assert error is not None
    stored = describe(error)
    assert stored.count("caused by") <= 4
    assert "more causes" in stored


def test_a_group_tells_of_its_members_and_their_causes() -> None:
    cause = raised(KeyError("deep"))
    member = ValueError("member")
    member.__cause__ = cause
    stored = describe(raised(ExceptionGroup("several", [member, TypeError("second")])))
    assert "in this group ValueError: member" in stored
    assert "in this group TypeError: second" in stored
    assert "caused by KeyError: 'deep'" in stored


def test_notes_are_told() -> None:
    error = ValueError("bad")
    error.add_note("of order 7")
    assert describe(error) == "ValueError: bad\nof order 7"


def test_the_last_of_a_long_trace_is_told_each_frame_in_few_bytes() -> None:
    source = "def fail():\n    raise ValueError(1)  # " + "x" * 1_000_000
    lines = [str(line) for line in source.splitlines(True)]
    linecache.cache["huge.py"] = (len(source), None, lines, "huge.py")
    space: dict[str, Any] = {}
    exec(compile(source, "huge.py", "exec"), space)
    with pytest.raises(ValueError, match="1") as caught:
        space["fail"]()
    assert 'File "huge.py", line 2' in describe(caught.value)
    assert len(describe(caught.value).encode()) < 2_000


def test_the_name_of_a_class_is_cut() -> None:
    assert len(kind(type("N" * 1_000_000, (Exception,), {})())) < 300
    assert first_line(type("", (Exception,), {})()) == "?"


def test_the_place_is_told() -> None:
    assert "test_failure.py" in describe(raised(KeyError("x")))


@pytest.mark.parametrize("limit", range(12))
def test_a_cut_never_splits_a_character(limit: int) -> None:
    assert cut("é日𝄞x", limit).split("…")[0] in {"", "é", "é日", "é日𝄞", "é日𝄞x"}


class Text(str):
    """No text for who looks closer."""

    __slots__ = ()

    def __len__(self) -> int:
        raise RuntimeError

    __bool__ = __getitem__ = __len__  # type: ignore[assignment]


class Odd(Exception):
    def __str__(self) -> str:
        return Text("odd")


class Causeless(Exception):
    @property
    def __cause__(self) -> BaseException | None:  # type: ignore[override]
        raise RuntimeError


def test_an_exception_may_be_made_of_anything() -> None:
    assert describe(raised(Odd())).startswith("Odd: odd\n")
    assert describe(raised(Causeless("x"))) == "Causeless: x\n<more could not be told: RuntimeError>"


def test_causes_that_go_in_a_circle_are_told_once() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert describe(first) == "ValueError: first\n\ncaused by ValueError: second"


def test_plain_text_is_ascii() -> None:
    assert plain("caf\u00e9 \U0001f600") == r"caf\xe9 \U0001f600"
