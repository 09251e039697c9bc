"""What a database lacks of a version of the tables, down to columns, constraints and the text of functions.

`parts` asks whether a version is there at all; this is for a database in which somebody has mended by hand. What ought
to be there is read from the very statements that a migration runs, and each part that is missing comes with the
statement that makes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Final

from ..home import prefix
from ..names import quoted

TABLE: Final = re.compile(r"CREATE (?:UNLOGGED )?TABLE \{schema\}(\w+) \(\n(.*?)\n\)", re.DOTALL)
INDEX: Final = re.compile(r"CREATE (?:UNIQUE )?INDEX (\w+) ON")
FUNCTION: Final = re.compile(
    r"CREATE FUNCTION (?:\{schema\}|<home>\.)(\w+)\([^)]*\).*\$magik\$(.*)\$magik\$", re.DOTALL
)
HOME: Final = "<home>.magik_jobs"  # in a body, with the schema that it was made in, which is not compared
TRIGGER: Final = re.compile(r"CREATE TRIGGER (\w+) .* ON \{schema\}(\w+)")

# All there is of ours, in one look: a part is known by its kind, its table (or none) and its name. `state` is what else
# has to be so: an index that failed half way is not valid, a trigger can be switched off, a function can have another
# text.
PRESENT: Final = """
WITH home AS (SELECT relnamespace AS id FROM pg_class WHERE oid = :oid),
ours AS (SELECT c.oid, c.relname FROM pg_class c, home WHERE c.relnamespace = home.id AND c.relname = ANY(:tables))
SELECT 'table' AS kind, relname AS of, relname AS name, '' AS state FROM ours
UNION ALL
SELECT 'column', relname, attname, '' FROM ours JOIN pg_attribute a ON attrelid = ours.oid
 WHERE attnum > 0 AND NOT attisdropped
UNION ALL
SELECT 'constraint', relname, conname, '' FROM ours JOIN pg_constraint ON conrelid = ours.oid
UNION ALL
SELECT 'index', '', c.relname, CASE WHEN indisvalid THEN '' ELSE 'not valid' END
  FROM ours JOIN pg_index ON indrelid = ours.oid JOIN pg_class c ON c.oid = indexrelid
UNION ALL
SELECT 'trigger', '', tgname, CASE tgenabled WHEN 'D' THEN 'disabled' ELSE '' END
  FROM ours JOIN pg_trigger ON tgrelid = ours.oid
UNION ALL
SELECT 'function', '', proname, replace(prosrc, home.id::regnamespace || '.magik_jobs', 'magik_jobs')
  FROM pg_proc, home WHERE pronamespace = home.id AND proname LIKE 'magik%'"""


@dataclass(frozen=True)
class Part:
    """Something that a version consists of: `sql` makes it, `of` is the table of a column or a constraint."""

    kind: str
    name: str
    sql: str
    of: str = ""
    state: str = ""
    table: str = ""  # of a trigger, whose name is unique among ours

    @property
    def key(self) -> tuple[str, str, str]:
        return self.kind, self.of, self.name


@dataclass(frozen=True)
class Lack:
    """A part that is missing, or not as it should be (`state`), and the statement that mends it."""

    kind: str
    name: str
    state: str
    sql: str


def parts(version: ModuleType) -> list[Part]:
    """Every part of a version, in the order in which they can be made."""
    return [part for statement in version.statements() for part in _read(statement)]


def lacking(version: ModuleType, present: dict[tuple[str, str, str], str]) -> Iterator[Lack]:
    """Compare with what `PRESENT` found. A table that is missing is one part; its columns go without saying."""
    gone = {part.name for part in parts(version) if part.kind == "table" and part.key not in present}
    for part in parts(version):
        name = f"{part.of}.{part.name}" if part.kind == "column" else part.name
        if part.kind in ("column", "constraint") and part.of in gone:
            continue
        if part.key not in present:
            yield Lack(part.kind, name, "missing", part.sql)
        elif present[part.key] != part.state:
            yield Lack(part.kind, name, *_mended(part, present[part.key]))


def _mended(part: Part, state: str) -> tuple[str, str]:
    """What is wrong with a part that is there, and what puts it right."""
    if part.kind == "index":
        return state, f"REINDEX INDEX {prefix()}{quoted(part.name)}"
    if part.kind == "trigger":
        return state, f"ALTER TABLE {prefix()}{part.table} ENABLE TRIGGER {quoted(part.name)}"
    return "changed", part.sql.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", 1)


def _read(statement: str) -> Iterator[Part]:
    sql = statement.format(schema=prefix()).strip()
    if found := TABLE.search(statement):
        yield Part("table", found[1], sql, of=found[1])
        yield from _lines(found[1], found[2].format())
    elif found := INDEX.search(statement):
        yield Part("index", found[1], sql)
    elif found := TRIGGER.search(statement):
        yield Part("trigger", found[1], sql, table=found[2])
    elif found := FUNCTION.search(statement):
        yield Part("function", found[1], sql, state=found[2].replace(HOME, "magik_jobs"))


def _lines(table: str, body: str) -> Iterator[Part]:
    """Each line of a CREATE TABLE is a column or a constraint, and ALTER TABLE takes it as it stands."""
    for line in body.splitlines():
        definition = line.strip().rstrip(",")
        kind, name = "column", definition.split()[0]
        if name == "CONSTRAINT":
            kind, name = "constraint", definition.split()[1]
        verb = "ADD" if kind == "constraint" else "ADD COLUMN"
        yield Part(kind, name, f"ALTER TABLE {prefix()}{table} {verb} {definition}", of=table)
