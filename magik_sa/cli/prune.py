"""``magik prune``: remove what is over. It may be run as often as one likes, and by several at once.

0  done
1  a part could not be removed: its tables were locked, or not this role's to write; the rest was
2  refused
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

import click
from sqlalchemy.exc import DBAPIError

from ..asking import Asking
from ..boot import import_modules
from ..duration import duration
from ..errors import BootError, BootRefused, DeclarationError, EnqueueError
from ..failure import first_line
from ..harmless import harmless
from ..pruning import Pruned, prune
from ..settings import read
from .connect import URL, connected
from .output import Answer, Command

MOST: Final = 20  # classes that are named
KINDS: Final = {  # one of them, and several
    "finished": ("finished row", "finished rows"),
    "expired": ("dead letter", "dead letters"),
    "effects": ("memory of once()", "memories of once()"),
    "notes": ("note of a claim whose worker is gone", "notes of claims whose workers are gone"),
    "workers": ("row of a worker that is gone", "rows of workers that are gone"),
}
UNTOUCHED: Final = {
    "finished": "finished rows (name modules, or --older-than)",
    "expired": "dead letters (--expired-older-than)",
    "effects": "what once() remembers (--effects-older-than)",
}
UNASKED: Final = "It was not said what is over: name the modules whose classes say keep=…, or an age."


def _age(ctx: click.Context, option: click.Parameter, value: str | None) -> timedelta | None:  # noqa: ARG001
    try:
        return None if value is None else duration(value, field=option.opts[0])
    except DeclarationError as error:
        raise BootError("MAGIK_SETTING_INVALID", error.what, field=option.opts[0], remedy=error.remedy) from None


@click.command("prune", cls=Command)
@click.argument("modules", nargs=-1)
@click.option("--older-than", callback=_age, help="finished rows of this age, whatever their class says")
@click.option("--class", "job_class", help="only the rows of this job class")
@click.option("--expired-older-than", callback=_age, help="dead letters of this age too; without it, none")
@click.option(
    "--effects-older-than", callback=_age, help="what once() remembers, from this age on; without it, nothing"
)
@click.option("--dry-run", is_flag=True, help="only count")
@URL
def command(modules: tuple[str, ...], database_url: str | None, dry_run: bool, **wish: Any) -> Answer:
    """Remove finished rows that the classes in MODULES have kept for long enough, and what dead workers left.

    MODULES are those of the worker, also from MAGIK_MODULES or pyproject.toml; with --older-than none are needed.
    """
    told = read({"modules": modules or None, "database_url": database_url})
    ages = [wish["older_than"], wish["expired_older_than"], wish["effects_older_than"]]
    if not told.modules and not any(ages):
        raise BootError("MAGIK_SETTING_INVALID", UNASKED, field="older-than", remedy="See magik prune --help.")
    if wish["older_than"] is None and (findings := list(import_modules(told.modules))):
        raise BootRefused(findings)
    with connected(told.database_url, "prune") as connection:
        Asking(connection)  # refuses where there are no tables: that is no part that could not be removed
        done = _pruned(connection, dry_run, wish)
    asked = {kind: wish[f"{kind}_older_than"] is not None for kind in ("expired", "effects")}
    asked["finished"] = bool(told.modules) or wish["older_than"] is not None
    return Answer("\n".join(_lines(done, asked)), asdict(done), 1 if done.failed else 0)


def _pruned(connection: Any, dry_run: bool, wish: dict[str, Any]) -> Pruned:
    try:
        return prune(connection, **wish, dry_run=dry_run)
    except DBAPIError as error:
        if not error.connection_invalidated:
            raise
        raise BootError("MAGIK_DATABASE_UNREACHABLE", f"The connection was lost: {first_line(error)}.") from error
    except EnqueueError as error:
        raise BootError("MAGIK_SETTING_INVALID", error.what, field="class", remedy="Name its module.") from None


def _lines(done: Pruned, asked: Mapping[str, bool]) -> Iterator[str]:
    """What went, kind by kind; of kinds that were not asked for, only where something did. Then what stays, and why."""
    went, stay = ("would be removed", "would be kept") if done.dry_run else ("removed", "kept")
    if asked["finished"]:
        yield f"{_rows(sum(done.finished.values()), 'finished')} {went}{_each(done)}"
    for kind in [*KINDS][1:]:
        if (rows := getattr(done, kind)) or asked.get(kind):
            yield f"{_rows(rows, kind)} {went}"
    if ages := _some([f"of {name} younger than {age}" for name, age in done.kept.items()]):
        yield harmless(f"{stay}: finished rows {ages}")
    if done.left and asked["finished"]:
        names = ", ".join(done.left)
        yield harmless(f"left alone, as no class here says how long they are kept: rows of {names} (--older-than does)")
    if unasked := [told for kind, told in UNTOUCHED.items() if not asked[kind]]:
        yield f"{stay}, as nothing was said of them: {', '.join(unasked)}"
    for part, why in done.failed.items():
        yield harmless(f"not removed: {part}: {why}")


def _each(done: Pruned) -> str:
    """How many of which class; where none went, why."""
    if done.finished:
        return harmless(": " + _some([f"{rows:,} {name}" for name, rows in done.finished.items()]))
    if done.failed:
        return ""
    return ": none is old enough" if done.kept else "" if done.left else ": there are none"


def _rows(n: int, kind: str) -> str:
    """As in: 1 dead letter, 2 dead letters."""
    return f"{n:,} {KINDS[kind][n != 1]}"


def _some(told: list[str]) -> str:
    more = len(told) - MOST
    return ", ".join([*told[:MOST], *([f"and {more:,} more"] if more > 0 else [])])
