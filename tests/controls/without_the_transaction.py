"""What a job has flushed is committed there and then, and not with its end."""

from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Session

from . import work


@event.listens_for(Session, "after_flush")
def _commit(session: Session, _: object) -> None:
    driver: Any = session.connection().connection.driver_connection
    driver.commit()


if __name__ == "__main__":
    work()
