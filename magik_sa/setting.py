"""A setting of the server, for a few statements of the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy import Connection, text

# Local to the transaction. After a statement that failed it has to be rolled back, at least to a savepoint, which puts
# back what was set, so only what went well is put back by hand.
SET: Final = text("SELECT current_setting(:name, true), set_config(:name, :value, true)")
PUT_BACK: Final = text("SELECT set_config(:name, :value, true)")


@contextmanager
def setting(connection: Connection, name: str, value: str) -> Iterator[None]:
    """Have it so in this block, whatever it was before."""
    before = connection.execute(SET, {"name": name, "value": value}).one()[0]
    yield
    connection.execute(PUT_BACK, {"name": name, "value": before or ""})
