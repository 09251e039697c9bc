"""The options by which jobs are chosen, and a connection on which the server's refusals are said in our words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar
from uuid import UUID

import click
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from .. import grants
from ..acting import MOST, Filter
from ..acting.states import no_state
from ..asking import Asking
from ..errors import BootError
from ..failure import first_line, sqlstate
from ..grants import Needs
from ..locked import is_locked, tables_locked
from .connect import URL, connected

F = TypeVar("F", bound=Callable[..., Any])

CODES: Final = {"42501": "MAGIK_GRANT_MISSING", "25006": "MAGIK_SERVER_READ_ONLY"}  # else MAGIK_STATEMENT_REFUSED
LISTED: Final = (
    *("id", "version", "job_class", "queue", "priority", "run_at", "enqueued_at", "error_count", "last_error"),
    *("failed_at", "expired_at", "finished_at"),
)
LOOKING: Final = Needs({"magik_jobs": "SELECT"}, {"magik_jobs": LISTED})
CHANGING: Final = Needs({"magik_jobs": "SELECT, UPDATE"}, {})
DELETING: Final = Needs({"magik_jobs": "SELECT, UPDATE, DELETE"}, {})  # it locks the row first, which is an UPDATE's
TIMED_OUT: Final = "57014"


def choosing(states: Sequence[str], limit: int) -> Callable[[F], F]:
    """The options of a filter. The function takes them as `chosen`, with the `limit` and the `database_url`."""
    options = (
        click.argument("ids", nargs=-1, type=click.UUID, metavar="[ID]..."),
        click.option("--class", "job_class", help="the stored name of a job class"),
        click.option("--queue", help="a queue"),
        click.option(
            *("--state", "states"),
            multiple=True,
            metavar=f"[{'|'.join(states)}]",
            callback=_among(states),
            help="may be repeated",
        ),
        click.option("--older-than", help='a duration, "1h30m": expired, finished, or enqueued so long ago'),
        click.option("--younger-than", help="a duration; not longer ago"),
        click.option("--arg", "arguments", multiple=True, metavar="NAME=VALUE", help="an argument, compared as text"),
        click.option("--limit", type=click.IntRange(1, MOST), default=limit, show_default=True, help="at most so many"),
        URL,
    )

    def optioned(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return optioned


def _among(states: Sequence[str]) -> Callable[[click.Context, click.Parameter, tuple[str, ...]], tuple[str, ...]]:
    """Refuses what is none of these states, with what it was probably meant for."""

    def checked(ctx: click.Context, option: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
        for word in given:
            if word not in states:
                raise click.BadParameter(f"{word!r} {no_state(word, states)}", ctx, option)
        return given

    return checked


def filter_of(
    ids: Sequence[UUID], states: Sequence[str], arguments: Sequence[str], otherwise: Sequence[str] = (), **given: Any
) -> Filter:
    """The filter that was written; where neither states nor ids are named, those of `otherwise`."""
    meant = states or (() if ids else otherwise)
    return Filter(states=meant, ids=[*dict.fromkeys(ids)], arguments=dict(map(_argument, arguments)), **given)


def _argument(written: str) -> tuple[str, str]:
    name, equals, value = written.partition("=")
    if not equals or not name:
        what = "--arg: an argument is written NAME=VALUE."  # not repeated: it may hold what must not be shown
        raise BootError("MAGIK_SETTING_INVALID", what, field="arg", remedy="Write --arg tenant_id=7.")
    return name, value


@contextmanager
def reaching(database_url: str | None, needs: Needs = LOOKING) -> Iterator[Connection]:
    """A connection of ours, to a database that has our tables, as a role that has what it `needs`."""
    with connected(database_url, "jobs") as connection:
        try:
            Asking(connection)  # raises where there are no tables, or they are hidden from this role
            with connection.begin():
                lacks = grants.lacking(connection, needs)
            if lacks:
                raise grants.refused(lacks)
            yield connection
        except DBAPIError as error:
            raise _coded(connection, error) from error


def _coded(connection: Connection, error: DBAPIError) -> BootError:
    if error.connection_invalidated:
        return BootError("MAGIK_DATABASE_UNREACHABLE", f"The connection was lost: {first_line(error)}.")
    if is_locked(error):
        connection.rollback()
        return tables_locked(connection)
    code = CODES.get(sqlstate(error) or "", "MAGIK_STATEMENT_REFUSED")
    remedy = "Narrow it down: by --class, --queue, --state or ids." if sqlstate(error) == TIMED_OUT else None
    return BootError(code, f"The server refused: {first_line(error)}.", remedy=remedy)
