"""The text of a failure: bounded, and always something that Postgres can store.

An exception's text can hold anything: NUL bytes, lone surrogates, sixty megabytes, a __str__ that raises. None of
that may keep the outcome of a job from being written.

Of a database's error only what names no values is told: the server's first line and the statement. SQLAlchemy adds the
parameters, the server a DETAIL with the whole row ("Failing row contains …") and a LINE of the statement.
"""

from __future__ import annotations

import os
import re
import traceback
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy.exc import PendingRollbackError, StatementError

LONGEST_MESSAGE = 2_000  # bytes of one exception's own text
LONGEST_TEXT = 12_000  # bytes of the whole, as stored
LONGEST_NAME = 200  # bytes of the name of an exception's class
LONGEST_FRAME = 400  # bytes of one frame, which quotes a line of source
LONGEST_NOTE = 500  # bytes of one note
FRAMES = 20  # innermost frames of each exception
NOTES = 3  # the first of those that were added to an exception
LINKS = 4  # exceptions told of: the error, its causes, and the members of a group

# Libraries whose frames are no place of the application's.
UNDERNEATH = frozenset({"sqlalchemy", "psycopg", "psycopg2"})
OURS = f"{Path(__file__).parent}{os.sep}"  # where the frames of this package are

BAD_VALUE = "22"  # the class of SQLSTATEs of which the first line quotes one: invalid input syntax for type uuid: "…"
QUOTED = re.compile('".*"', re.DOTALL)


def describe(error: BaseException) -> str:
    """`error` as ``Type: text``, its notes, then where it was raised, then its causes. Never raises."""
    try:
        links = [before + _told(link) for before, link in islice(_linked(error), LINKS + 1)]
    except BaseException as broken:  # what an exception is made of may raise anything at all
        return cut(f"{headline(error)}\n<more could not be told: {kind(broken)}>", LONGEST_TEXT)
    more = "\n\n… and more causes" if len(links) > LINKS else ""
    return cut(storable("".join(links[:LINKS]) + more), LONGEST_TEXT)


def headline(error: BaseException) -> str:
    """``Type: text`` on the text's own lines, cut with a mark. Never raises."""
    try:
        text = _said(error)
        # Of a subclass of str not even the length is to be trusted.
        text = cut(str.__getitem__(text, slice(LONGEST_MESSAGE * 2)), LONGEST_MESSAGE, str.__len__(text))
    except BaseException as broken:  # a __str__ may raise anything at all
        text = f"<its text could not be made: {kind(broken)}>"
    name = kind(error, "__qualname__")
    return storable(f"{name}: {text}" if text else name)


def kind(error: BaseException, attribute: str = "__name__") -> str:
    """The name of an error's class, which may be as long as any other text."""
    try:
        return cut(storable(getattr(type(error), attribute)), LONGEST_NAME) or "?"
    except BaseException:
        return "?"


def _said(error: BaseException) -> str:
    """The words of an error, those of a database without any value."""
    if isinstance(error, StatementError) and (origin := error.orig) is not None:
        name = f"{type(origin).__module__}.{type(origin).__qualname__}"
        statement = f"\n[SQL: {error.statement}]" if error.statement else ""
        return f"({name}) {_said(origin)}{statement}"
    if isinstance(error, PendingRollbackError):  # repeats the whole text of the error that broke the flush
        return str(error).partition(" Original exception was:")[0]
    first: str | None = getattr(_asked(error, "diag"), "message_primary", None)
    if first is None:
        return str(error)
    return QUOTED.sub('"…"', first) if (sqlstate(error) or "").startswith(BAD_VALUE) else first


def first_line(error: BaseException) -> str:
    """What an error says, or the driver's error inside it, without the hints on further lines."""
    return headline(_asked(error, "orig") or error).splitlines()[0].rstrip(".")


def sqlstate(error: BaseException) -> str | None:
    """The server's code of an error that SQLAlchemy or a driver raised: psycopg calls it sqlstate, psycopg2 pgcode."""
    origin = _asked(error, "orig") or error
    code: str | None = _asked(origin, "sqlstate") or _asked(origin, "pgcode")
    return code


def _asked(error: BaseException, attribute: str) -> Any:
    """What an error says of itself, if anything: to be asked may be too much for it."""
    try:
        return getattr(error, attribute, None)
    except Exception:
        return None


def _linked(error: BaseException) -> Iterator[tuple[str, BaseException]]:
    """The error, and all that it came from, nearest first; each once, with the words before it."""
    waiting: deque[tuple[str, BaseException]] = deque([("", error)])
    seen: set[int] = set()
    while waiting:
        before, link = waiting.popleft()
        if id(link) in seen:
            continue
        seen.add(id(link))
        yield before, link
        if isinstance(link, BaseExceptionGroup):
            waiting.extend(("\n\nin this group ", member) for member in link.exceptions[: LINKS + 1])
        if cause := link.__cause__ or (None if link.__suppress_context__ else link.__context__):
            waiting.append(("\n\ncaused by ", cause))


def _told(link: BaseException) -> str:
    return "\n".join([headline(link), *_notes(link), *_frames(link)])


def _notes(error: BaseException) -> list[str]:
    notes: Any = getattr(error, "__notes__", None)
    found = [note for note in notes[:NOTES] if isinstance(note, str)] if isinstance(notes, list) else []
    return [cut(note[: LONGEST_NOTE * 2], LONGEST_NOTE, len(note)) for note in found]


def _frames(error: BaseException) -> list[str]:
    """Lines of source are read from files and loaders, of which each may fail in a way of its own."""
    try:
        found = traceback.extract_tb(error.__traceback__, limit=-FRAMES)
        kept = traceback.format_list(_without_ours(found, caused=error.__cause__ is not None))
    except BaseException as broken:
        return [f"<where it was raised could not be told: {kind(broken)}>"]
    return [cut(frame.rstrip("\n"), LONGEST_FRAME) for frame in kept]


def _without_ours(frames: list[traceback.FrameSummary], caused: bool) -> list[traceback.FrameSummary]:
    """From the application's first frame on. Of an error of ours with none of its frames its cause tells the place."""
    first = next((n for n, frame in enumerate(frames) if not frame.filename.startswith(OURS)), None)
    if first is None:
        return [] if caused else frames
    return frames[first:]


def raised_at(error: BaseException) -> str | None:
    """The line of the application's that raised it, or was interrupted. Not what it says, which may hold arguments.

    Of an error of ours with no frame of the application's its cause tells the place. Never raises.
    """
    try:
        return next(filter(None, (_innermost(link) for link in (error, error.__cause__) if link is not None)), None)
    except BaseException:
        return None


def _innermost(error: BaseException) -> str | None:
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    theirs = [
        f"{file}:{line}"
        for file, line in places
        if not file.startswith(OURS) and UNDERNEATH.isdisjoint(Path(file).parts)
    ]
    return storable(theirs[-1]) if theirs else None


def storable(text: str) -> str:
    """`text` without what Postgres cannot hold: NUL and lone surrogates are written visibly, as ``\\x00``."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


def plain(text: str) -> str:
    """`text` for a server, or a connection, whose encoding lacks characters: those beyond ASCII as ``\\xe9``."""
    return text.encode("ascii", "backslashreplace").decode()


def cut(text: str, limit: int, full: int | None = None) -> str:
    """The first `limit` bytes of `text`, never half a character, with a mark where something is missing."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= limit:
        return text
    return f"{data[:limit].decode('utf-8', 'ignore')}… [cut, {full or len(text):,} characters in all]"
