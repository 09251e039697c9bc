"""once(): the first to ask for a key gets True, whoever asks again gets False, for as long as its row is kept.

The row is written in the transaction of the effect, so the two are committed together or not at all. Nobody looks
before writing: the primary key decides, and it waits for another open transaction to end before it does.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final
from uuid import UUID

from sqlalchemy import LargeBinary, Text, column, table
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import Session, scoped_session

from .attribute import settle
from .errors import EnqueueError
from .job import Job, metadata
from .key import digest
from .storable import encoded, invalid
from .storable import text as storable
from .writing import connection_of, session_of

# Without a target the INSERT needs no right to read the table.
_EFFECTS: Final = table(
    "magik_effects", column("scope", Text), column("key_digest", LargeBinary), schema=metadata.schema
)
_DONE: Final = postgresql.insert(_EFFECTS).on_conflict_do_nothing().execution_options(preserve_rowcount=True)


BYTES: Final = 32  # of a digest


def once(session: Session | scoped_session[Any], key: Job | Any, *, scope: str | None = None) -> bool:
    """Whether this is the first time: ask right before the effect, and make it only then.

    `key` is a job, whose own key counts (`idempotent_by`), or JSON, in which a UUID may stand too. `scope` says what it
    is that happens once: for a job it is the class unless you say so, a key of your own needs one. If the transaction
    rolls back, it was not the first time. While another transaction that was first is open, this one waits.

    Raises `EnqueueError` ``MAGIK_ARGS_INVALID`` for a `key` or `scope` that cannot be stored, and
    ``MAGIK_ONCE_WITHOUT_KEY`` for a job that has no key.
    """
    into = session_of(session)
    if scope is None and not isinstance(key, Job):
        raise invalid("scope", "is missing: say what it is that happens once for this key")
    row = {
        "scope": storable(key.job_class if scope is None else scope, "scope"),
        "key_digest": _key_of(key) if isinstance(key, Job) else _digest(key),
    }
    return bool(connection_of(into).execute(_DONE, row).rowcount)


def _key_of(job: Job) -> bytes:
    """The key in the job's row; of a row that is older than the class's `idempotent_by`, the key that it would have."""
    settle(job)
    declaration = type(job).__magik__
    if declaration.idempotent_by == ():
        what = f"{declaration.name} has idempotent_by = (), which is the same key for all of its jobs."
        raise EnqueueError("MAGIK_ONCE_WITHOUT_KEY", what, field="key")
    if job.key_digest is None and declaration.idempotent_by is None:
        raise EnqueueError("MAGIK_ONCE_WITHOUT_KEY", f"{declaration.name} has no idempotent_by.", field="key")
    if job.key_digest is not None:
        if len(job.key_digest) != BYTES:
            raise invalid("key_digest", "is no digest: somebody has written the row by hand")
        return job.key_digest
    keyed = [declaration.arguments[name] for name in declaration.idempotent_by or ()]
    return digest(keyed, {argument.name: getattr(job, argument.name) for argument in keyed})


def _digest(key: Any) -> bytes:
    if key is None:
        raise invalid("key", "is None, which would be the same key for everybody")
    try:
        return sha256(encoded(_canonical(key), "key")).digest()
    except RecursionError:
        raise invalid("key", "is nested too deeply") from None


def _canonical(key: Any) -> Any:
    """One form for what is one key: a tuple and a list, 1.0 and 1, a UUID and its text."""
    match key:
        case UUID():
            return str(key)
        case float() if key.is_integer():
            return int(key)
        case list() | tuple():
            return [_canonical(item) for item in key]
        case dict():
            return {_name(name): _canonical(value) for name, value in key.items()}
    return key


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise invalid("key", "has a name that is no text")
    return name
