"""A job whose class says something for every option that reaches its row."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Literal, Self

from sqlalchemy.orm import Mapped, Session

from magik_sa import Job, Retries, arg


class Optioned(Job, policy="system", queue="payments", priority=7, name="shop.optioned"):
    """Fails, ends well, or adds the next of its own class and key with the words that it is given for it."""

    retries = Retries(times=3, backoff="constant", base="1h", jitter=0)
    idempotent_by = ("tenant", "month")
    discard_on = KeyError
    keep = "7d"

    tenant: Mapped[int] = arg()
    month: Mapped[str] = arg()
    note: Mapped[str] = arg(default="as declared")
    token: Mapped[str] = arg(default="secret", sensitive=True)
    then: Mapped[Literal["end", "fail", "next"]] = arg(default="end")
    words: Mapped[dict[str, Any]] = arg(default_factory=dict)

    def perform(self, session: Session) -> None:
        if self.then == "fail":
            raise ValueError
        if self.then == "next":
            words: dict[str, Any] = dict(self.words)
            if "run_at" in words:
                words["run_at"] = datetime.fromisoformat(words["run_at"])
            session.add(Optioned(tenant=self.tenant, month=self.month, **words))

    @classmethod
    def on_schedule(cls, session: Session, **words: Any) -> Iterator[Self]:
        yield cls(tenant=1, month="2026-11", **words)
