"""Flask-SQLAlchemy: `db.session` enqueues in a request, and is the job's own Session while a job is performed.

flask --app examples.flask_app run
python -m magik_sa.worker examples.flask_app
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from magik_sa import Job, arg, around_perform


class Base(DeclarativeBase):
    """The application's own tables."""


db = SQLAlchemy(model_class=Base)
app = Flask(__name__)
app.config["SQLALCHEMY_DATABASE_URI"] = os.environ["MAGIK_DATABASE_URL"]
db.init_app(app)


class Order(db.Model):  # type: ignore[name-defined, misc, unused-ignore]
    """What somebody ordered."""

    __tablename__ = "flask_orders"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    receipts: Mapped[int] = mapped_column(default=0)


class SendReceipt(Job, policy="system"):
    """Sends a receipt for an order."""

    number: Mapped[int] = arg()

    def perform(self, session: Session) -> None:  # noqa: ARG002 - db.session is this very Session
        db.session.get_one(Order, self.number).receipts += 1


@around_perform
def in_app_context(_: Job, session: Session) -> Iterator[None]:
    """Jobs run in an application context, with their Session as `db.session`.

    The end of the context closes what it finds there, and would roll the job's work back: so it is taken out first.
    """
    with app.app_context():
        db.session.registry.set(session)  # type: ignore[arg-type]
        try:
            yield
        finally:
            db.session.registry.clear()


@app.post("/orders/<int:number>")
def place(number: int) -> dict[str, str]:
    """Place an order."""
    job = SendReceipt(number=number)
    order = Order(number=number)  # pyright: ignore[reportCallIssue]
    db.session.add_all([order, job])
    db.session.commit()
    return {"job": str(job.id)}
