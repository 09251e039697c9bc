"""Jobs that leave something on the Connection of their Session, close it, or look what they find there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Mapped, Session

from magik_sa import Job, Retries, arg


def note(session: Session, what: str) -> None:
    session.execute(text("INSERT INTO notes VALUES (:what)"), {"what": what})


def level(session: Session, isolation_level: str) -> None:
    session.connection(execution_options={"isolation_level": isolation_level}).execute(text("SELECT 1"))


def driver(session: Session) -> Any:
    return session.connection().connection.dbapi_connection


def closing(session: Session) -> None:
    with session.connection():
        note(session, "closing")


def committing(session: Session) -> None:
    with session.connection():
        note(session, "committing")
        session.commit()


def setting_autocommit(session: Session) -> None:
    driver(session).rollback()
    driver(session).autocommit = True


def committed(session: Session, setting: str) -> None:
    """Lasts on the server's side, for as long as the session."""
    session.execute(text(setting))
    session.commit()


LEFT: dict[str, Callable[[Session], object]] = {
    "SERIALIZABLE": lambda session: level(session, "SERIALIZABLE"),
    "AUTOCOMMIT": lambda session: level(session, "AUTOCOMMIT"),
    "the driver's autocommit": setting_autocommit,
    "a time zone": lambda session: committed(session, "SET TIME ZONE 'Asia/Tokyo'"),
}
SPOILT: dict[str, Callable[[Session], object]] = {
    "a search_path": lambda session: committed(session, "SET search_path TO nowhere"),
    "read only": lambda session: committed(session, "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"),
}
CLOSED: dict[str, Callable[[Session], object]] = {
    "closing": closing,
    "the driver's close": lambda session: driver(session).close(),
    "detach": lambda session: session.connection().detach(),
}
KEPT: list[Session] = []
HOW: dict[str, Callable[[Session], object]] = {
    "nothing": lambda _: None,
    "committing": committing,
    "keeping its Session": KEPT.append,
    "another schema": lambda session: session.connection(execution_options={"schema_translate_map": {None: "nowhere"}}),
    **LEFT,
    **SPOILT,
    **CLOSED,
}


class LeavingBehind(Job, policy="system"):
    """Does to its Connection what it is told, and fails where it is told."""

    retries = Retries(times=0)
    how: Mapped[str] = arg()
    fails: Mapped[bool] = arg(default=False)

    def perform(self, session: Session) -> None:
        HOW[self.how](session)
        if self.fails:
            raise RuntimeError("as told")

    def on_failure(self, session: Session, error: BaseException) -> None:
        if str(error) == "as told":
            note(session, "rolled back")
            session.flush()
            raise ValueError


class Following(Job, policy="system"):
    """Comes next on that thread: notes how it is isolated, or writes and fails."""

    retries = Retries(times=0)
    fails: Mapped[bool] = arg(default=False)

    def perform(self, session: Session) -> None:
        isolation = session.scalar(text("SHOW transaction_isolation"))
        assert session.scalar(text("SHOW timezone")) != "Asia/Tokyo"
        note(session, "rolled back" if self.fails else str(isolation))
        if self.fails:
            raise RuntimeError("as told")


class Writing(Job, policy="system"):
    """Writes through the Session that a job before it has kept, as a thread that was left behind would."""

    def perform(self, session: Session) -> None:
        try:
            note(KEPT[-1], "by another job's Session")
        except Exception as error:
            note(session, str(error).partition(":")[0])
