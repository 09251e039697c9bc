"""The text of a failure: bounded, and always something that Postgres can store.

An exception's text can hold anything: NUL bytes, lone surrogates, sixty megabytes, a __str__ that raises. None of
that may keep the outcome of a job from being written.
"""

from __future__ import annotations

import traceback

LONGEST_MESSAGE = 2_000  # characters of one exception's own text
LONGEST_TEXT = 12_000  # bytes of the whole, as stored
FRAMES = 20  # innermost frames of each exception
CHAIN = 4  # exceptions of a chain


def describe(error: BaseException) -> str:
    """`error` as ``Type: text``, then where it was raised, then its causes."""
    links: list[str] = []
    link: BaseException | None = error
    while link is not None and len(links) < CHAIN:
        links.append(f"{headline(link)}\n{_frames(link)}".rstrip())
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    if link is not None:
        links.append("… and more causes")
    return cut(storable("\n\ncaused by ".join(links)), LONGEST_TEXT)


def headline(error: BaseException) -> str:
    """``Type: text`` on the text's own lines, cut with a mark."""
    try:
        text = str(error)
    except BaseException as broken:  # a __str__ may raise anything at all
        text = f"<its text could not be made: {type(broken).__name__}>"
    name = type(error).__qualname__
    return storable(f"{name}: {cut(text[: LONGEST_MESSAGE * 2], LONGEST_MESSAGE, len(text))}" if text else name)


def first_line(error: BaseException) -> str:
    """What an error says, or the driver's error inside it, without the hints on further lines."""
    return headline(getattr(error, "orig", None) or error).splitlines()[0].rstrip(".")


def sqlstate(error: BaseException) -> str | None:
    """The server's code of an error that SQLAlchemy or a driver raised: psycopg calls it sqlstate, psycopg2 pgcode."""
    origin = getattr(error, "orig", None) or error
    code: str | None = getattr(origin, "sqlstate", None) or getattr(origin, "pgcode", None)
    return code


def _frames(error: BaseException) -> str:
    kept = traceback.extract_tb(error.__traceback__, limit=-FRAMES)
    return "".join(traceback.format_list(kept))


def storable(text: str) -> str:
    """`text` without what Postgres cannot hold: NUL and lone surrogates are written visibly, as ``\\x00``."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


def cut(text: str, limit: int, full: int | None = None) -> str:
    """The first `limit` bytes of `text`, never half a character, with a mark where something is missing."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= limit:
        return text
    return f"{data[:limit].decode('utf-8', 'ignore')}… [cut, {full or len(text):,} characters in all]"
