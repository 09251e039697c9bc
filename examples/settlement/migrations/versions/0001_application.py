"""The application's own tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

MONEY = sa.Numeric(12, 2)
MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    shops_and_orders()
    books()
    diary()


def shops_and_orders() -> None:
    op.create_table(
        "tenants",
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("name", sa.String, nullable=False, unique=True),
        sa.Column("active", sa.Boolean, nullable=False),
    )
    op.create_table(
        "orders",
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("tenant_id", sa.Uuid, sa.ForeignKey("tenants.id"), nullable=False),
        sa.Column("amount", MONEY, nullable=False),
        sa.Column("placed_at", MOMENT, nullable=False, server_default=sa.func.now()),
        sa.Column("settled_at", MOMENT),
    )
    op.create_table(
        "declined",
        sa.Column("order_id", sa.Uuid, primary_key=True),
        sa.Column("reason", sa.String, nullable=False),
    )


def books() -> None:
    op.create_table(
        "payments",
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("order_id", sa.Uuid, sa.ForeignKey("orders.id"), nullable=False, index=True),
        sa.Column("amount", MONEY, nullable=False),
        sa.Column("fee", MONEY, nullable=False),
        sa.Column("reference", sa.String, nullable=False),
        sa.Column("captured_at", MOMENT, nullable=False, server_default=sa.func.now()),
    )
    op.create_table(
        "ledger_entries",
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("order_id", sa.Uuid, sa.ForeignKey("orders.id"), nullable=False, index=True),
        sa.Column("booked_at", MOMENT, nullable=False, server_default=sa.func.now()),
    )
    op.create_table(
        "postings",
        sa.Column("id", sa.Integer, sa.Identity(always=True), primary_key=True),
        sa.Column("entry_id", sa.Uuid, sa.ForeignKey("ledger_entries.id"), nullable=False, index=True),
        sa.Column("account", sa.String, nullable=False),
        sa.Column("debit", MONEY, nullable=False),
        sa.Column("credit", MONEY, nullable=False),
    )


def diary() -> None:
    op.create_table(
        "starts",
        sa.Column("id", sa.Integer, sa.Identity(always=True), primary_key=True),
        sa.Column("job_id", sa.Uuid, nullable=False, index=True),
        sa.Column("order_id", sa.Uuid, nullable=False, index=True),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("started_at", MOMENT, nullable=False, server_default=sa.func.clock_timestamp()),
    )
    op.create_table(
        "kills",
        sa.Column("pid", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("killed_at", MOMENT, nullable=False, server_default=sa.func.clock_timestamp()),
    )


def downgrade() -> None:
    for name in ("kills", "starts", "postings", "ledger_entries", "payments", "declined", "orders", "tenants"):
        op.drop_table(name)
