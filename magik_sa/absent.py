"""A word to the error of a statement that finds no job table: a newcomer sees it first, and it names no remedy."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Engine, event
from sqlalchemy.engine import ExceptionContext

from .errors import BootError
from .failure import sqlstate

UNDEFINED_TABLE: Final = "42P01"


@event.listens_for(Engine, "handle_error")
def _tell(failed: ExceptionContext) -> None:
    """The error stays what it is; the note is shown below it."""
    error, said = failed.sqlalchemy_exception, str(failed.original_exception)
    if error is None or "magik_jobs" not in said:
        return
    if UNDEFINED_TABLE in (sqlstate(error) or said):  # pg8000 has it in its text alone
        error.add_note(str(BootError("MAGIK_SCHEMA_MISSING", "There is no job table on the search_path.")))
