"""What a Session has flushed is committed there and then, and not with the end of its transaction."""

from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Session

from . import work


def commit(session: Session, _: object) -> None:
    driver: Any = session.connection().connection.driver_connection
    driver.commit()


def take_out() -> None:
    event.listen(Session, "after_flush", commit)


if __name__ == "__main__":
    take_out()
    work()
