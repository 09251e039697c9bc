"""A database as pg_dump and psql see it."""

from __future__ import annotations

import subprocess

from .cluster import embedded
from .workers import dsn_of


def dump(url: str, *options: str) -> str:
    """Everything but the rows, in pg_dump's words; two databases with the same words are made alike."""
    command = [str(embedded() / "pg_dump"), "--schema-only", *options, dsn_of(url)]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    return "\n".join(line for line in text.splitlines() if not line.startswith(("\\restrict", "\\unrestrict", "--")))


def apply(url: str, script: str) -> None:
    """Run a script as ``psql -f`` would, and stop at the first error."""
    command = [str(embedded() / "psql"), "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", dsn_of(url)]
    done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
