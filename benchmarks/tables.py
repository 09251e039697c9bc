"""The application's table, into which jobs insert, and a row like a job's without a queue behind it."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from sqlalchemy import BigInteger, DateTime, Identity, LargeBinary, SmallInteger, Text, func, insert
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

MAKE: Final = (
    "CREATE TABLE app_rows (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, seq bigint NOT NULL, note text)"
)
MAKE_PLAIN: Final = "CREATE TABLE plain_rows (LIKE magik_jobs INCLUDING ALL)"  # its indexes and checks, no triggers
MOMENT: Final = DateTime(timezone=True)


class Base(DeclarativeBase):
    """Of the application's own tables."""


class AppRow(Base):
    """What a job of the kinds ``add`` and ``db`` inserts, once."""

    __tablename__ = "app_rows"
    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger)
    note: Mapped[str | None] = mapped_column(Text)


class PlainRow(Base):
    """The columns of a job, mapped as an application would that has no queue."""

    __tablename__ = "plain_rows"
    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    job_class: Mapped[str] = mapped_column(Text)
    queue: Mapped[str] = mapped_column(Text)
    priority: Mapped[int] = mapped_column(SmallInteger)
    run_at: Mapped[datetime] = mapped_column(MOMENT, server_default=func.now())
    args: Mapped[dict[str, Any]] = mapped_column(JSONB)
    context: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    key_digest: Mapped[bytes | None] = mapped_column(LargeBinary)
    version: Mapped[int]
    error_count: Mapped[int]
    last_error: Mapped[str | None] = mapped_column(Text)
    failed_at: Mapped[datetime | None] = mapped_column(MOMENT)
    enqueued_at: Mapped[datetime] = mapped_column(MOMENT, server_default=func.now())
    finished_at: Mapped[datetime | None] = mapped_column(MOMENT)
    expired_at: Mapped[datetime | None] = mapped_column(MOMENT)

    __mapper_args__ = {"eager_defaults": False}


def add(session: Session, seq: int) -> None:
    """The body of a job of the kind ``add``, and of its bare loop."""
    session.add(AppRow(seq=seq, note="done"))


def execute(session: Session, seq: int) -> None:
    """The body of a job of the kind ``db``, and of its bare loop."""
    session.execute(insert(AppRow).values(seq=seq, note="done"))
