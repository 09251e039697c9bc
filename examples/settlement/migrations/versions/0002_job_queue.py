"""The queue's tables."""

from __future__ import annotations

from alembic import op

import magik_sa.migrations  # noqa: F401  (it gives op its two verbs)

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.magik_upgrade(version=1)


def downgrade() -> None:
    op.magik_downgrade(version=0)
