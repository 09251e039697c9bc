"""The claim of a tick is committed, and then its jobs are added."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy.orm import Session

from magik_sa import ticks

from . import replace

original = ticks._held


@contextmanager
def committed(entry: Any, session: Session) -> Iterator[None]:
    driver: Any = session.connection().connection.driver_connection
    driver.commit()
    with original(entry, session):
        yield


def take_out() -> None:
    replace(ticks, "_held", committed)
