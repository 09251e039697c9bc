"""A run is not told that it has lost its lock: it saves on its way whatever the one that has the job now does."""

from sqlalchemy.orm import Session

from magik_sa import fence

from . import replace, work


def silent(session: Session) -> None:
    """Say nothing of a lock that is lost."""


def take_out() -> None:
    replace(fence, "_committing", silent)


if __name__ == "__main__":
    take_out()
    work()
