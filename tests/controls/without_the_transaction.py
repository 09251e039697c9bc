"""What a job writes is committed statement by statement, and not with its end."""

from typing import Any

from sqlalchemy import Engine, event

from . import work


@event.listens_for(Engine, "connect")
def _autocommit(connection: Any, _: object) -> None:
    connection.autocommit = True


if __name__ == "__main__":
    work()
