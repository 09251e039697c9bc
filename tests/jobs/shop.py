"""A shop: orders of its own, and jobs that are added beside them."""

from __future__ import annotations

from sqlalchemy import Engine, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from magik_sa import Job, arg
from tests.tools.effects import record


class Base(DeclarativeBase):
    """The application's own tables."""


class Order(Base):
    """A business row. A number that is taken shows at COMMIT only, as with any deferred constraint."""

    __tablename__ = "orders"
    __table_args__ = (UniqueConstraint("number", deferrable=True, initially="DEFERRED"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int]


class Packing(Job, policy="system"):
    """A job without a key."""

    number: Mapped[int] = arg()

    def perform(self, session: Session) -> None:
        record(self, str(self.number))


class Settling(Job, policy="system"):
    """At most one live job a tenant."""

    idempotent_by = "tenant"

    tenant: Mapped[int] = arg()

    def perform(self, session: Session) -> None:
        record(self, str(self.tenant))


class Paying(Job, policy="system"):
    """Another class whose keys look the same."""

    idempotent_by = "tenant"

    tenant: Mapped[int] = arg()

    def perform(self, session: Session) -> None:
        record(self, str(self.tenant))


def open_shop(engine: Engine) -> None:
    """Make the application's tables."""
    Base.metadata.create_all(engine)
