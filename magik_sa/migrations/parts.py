"""Whether a version of the tables is there as a whole.

Half of them is what is left when a dump was restored in part, when somebody dropped one by hand, or when something else
has taken a name. Making or removing the other half would end in the middle of it, with an error that names one part.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Final

from sqlalchemy import Connection, text

from ..errors import MagikError
from ..home import prefix

Part = tuple[str, str]  # its kind and its name

IS_THERE: Final = {
    "table": "SELECT to_regclass(:place || :name) IS NOT NULL",
    "index": "SELECT to_regclass(:place || :name) IS NOT NULL",
    "function": "SELECT to_regproc(:place || :name) IS NOT NULL",
    "trigger": """SELECT EXISTS (SELECT FROM pg_trigger
                   WHERE tgname = :name AND tgrelid IN (to_regclass(:place || 'magik_jobs'),
                                                           to_regclass(:place || 'magik_queues')))""",
}
SHOWN: Final = 4  # parts named in a message; the others are counted


def refuse_half(connection: Connection, recorded: ModuleType | None, newest: ModuleType) -> None:
    """Raise ``MAGIK_SCHEMA_INCOMPLETE`` where only some parts of the recorded version exist, or some and no record."""
    there: list[Part] = []
    missing: list[Part] = []
    for part in _parts(recorded or newest):
        (there if _is_there(connection, part) else missing).append(part)
    if recorded is None and there:
        fault = f"No version of the tables is recorded, yet there is {_named(there)}"
        raise MagikError("MAGIK_SCHEMA_INCOMPLETE", f"{fault}; missing: {_named(missing or [('record', 'of it')])}.")
    if recorded is not None and missing:
        raise MagikError("MAGIK_SCHEMA_INCOMPLETE", f"The tables are not whole; missing: {_named(missing)}.")


def _parts(version: ModuleType) -> Iterator[Part]:
    for kind, names in version.PARTS.items():
        yield from ((kind, name) for name in names)


def _is_there(connection: Connection, part: Part) -> bool:
    kind, name = part
    return bool(connection.scalar(text(IS_THERE[kind]), {"place": prefix(), "name": name}))


def _named(parts: list[Part]) -> str:
    named = ", ".join(f"{kind} {name}" for kind, name in parts[:SHOWN])
    return named if len(parts) <= SHOWN else f"{named} and {len(parts) - SHOWN} more"
