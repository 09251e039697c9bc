"""Arguments with a secret among them, on their way to the database.

SQLAlchemy quotes the parameters of a failed statement in its error, and an error is logged, or kept in
`last_error`. What it quotes of such arguments is their names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Dialect

from .unreadable import ReadableJSONB


class Sealed(dict[str, Any]):
    """A JSON object whose repr does not show the values under its `secret` names."""

    def __init__(self, values: dict[str, Any], secret: Iterable[str]) -> None:
        super().__init__(values)
        self.secret = frozenset(secret)

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{k!r}: {'…' if k in self.secret else repr(v)}" for k, v in self.items()) + "}"

    def __reduce__(self) -> Any:
        return Sealed, (dict(self), self.secret)


class SealedText(str):
    """The JSON of a sealed object, where the driver takes text."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'…'"


class SealableJSONB(ReadableJSONB):
    """JSONB that keeps a `Sealed` object sealed, whatever the driver makes of it."""

    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Any:
        """Psycopg wraps the object, and shows its repr; other drivers get text."""
        process = super().bind_processor(dialect)

        def sealing(value: Any) -> Any:
            coded = process(value) if process is not None else value
            return SealedText(coded) if isinstance(value, Sealed) and isinstance(coded, str) else coded

        return sealing
