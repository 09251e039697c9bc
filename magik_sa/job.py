"""Job: the mapped class that applications inherit, its columns, and how a job is built."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Never, NoReturn, dataclass_transform
from uuid import UUID

from sqlalchemy import LargeBinary, MetaData, SmallInteger, Table, Text, Uuid, func, text
from sqlalchemy.exc import DontWrapMixin
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, validates

from . import settings
from .args import arg
from .attribute import fill
from .classes import adopt, declare
from .columns import aware, carried_context, due
from .declaration import Declaration, whole
from .display import described
from .errors import EnqueueError
from .meant import meant
from .retries import Retries
from .schedule import Schedule
from .sealed import SealableJSONB
from .storable import invalid
from .storable import text as storable
from .table import CONSTRAINTS, JOBS, JobTable
from .unreadable import Instant, ReadableJSONB
from .uuid7 import uuid7
from .version import following

if TYPE_CHECKING:
    from dataclasses import InitVar

metadata: Final = MetaData(schema=settings.schema())


def kept(*args: Any, init: Literal[False] = False, **kw: Any) -> Any:  # noqa: ARG001 - for type checkers
    """A column that the queue writes: no keyword of the constructor."""
    return mapped_column(*args, **kw)


def given(*args: Any, default: None, **kw: Any) -> Any:  # noqa: ARG001 - for type checkers
    """A column that the application may write: a keyword of the constructor, which may be left out."""
    return mapped_column(*args, **kw)


class _NotAJob(EnqueueError, DontWrapMixin):
    """Reaches the application as it is, not inside SQLAlchemy's StatementError."""


def _no_job() -> NoReturn:
    """A job makes its own id, so whoever inserts rows without one (`bulk_insert_mappings`) does not insert jobs."""
    raise _NotAJob(
        "MAGIK_USE_BULK_ENQUEUE", "Rows of magik_jobs are made of jobs, for the sake of their checks and keys."
    )


@dataclass_transform(eq_default=False, kw_only_default=True, field_specifiers=(arg, kept, given))
class Declared(DeclarativeBase):
    """Gives job classes a constructor that type checkers know: arguments, and run_at, delay, queue, priority."""

    metadata = metadata


_NOTHING: Final = dict.fromkeys(["key_digest", "last_error", "failed_at", "finished_at", "expired_at"])


class Job(Declared):
    """A job: a row of ``magik_jobs``, enqueued by ``session.add``, gone when it has been performed."""

    __tablename__ = JOBS
    __table_args__ = CONSTRAINTS
    __table__: ClassVar[Table]  # pyright: ignore[reportIncompatibleVariableOverride]
    __magik__: ClassVar[Declaration] = Declaration("Job")

    retries: ClassVar[Retries]
    idempotent_by: ClassVar[str | tuple[str, ...]]
    discard_on: ClassVar[type[BaseException] | tuple[type[BaseException], ...]]
    keep: ClassVar[str | timedelta | None]
    money: ClassVar[bool]
    schedule: ClassVar[Schedule | tuple[Schedule, ...] | None]

    id: Mapped[UUID] = kept(Uuid, primary_key=True, default=_no_job, server_default=func.gen_random_uuid())
    job_class: Mapped[str] = kept(Text)
    queue: Mapped[str] = given(Text, server_default="default", default=None)
    priority: Mapped[int] = given(SmallInteger, server_default="100", default=None)
    run_at: Mapped[datetime] = given(Instant, server_default=func.now(), default=None)
    args: Mapped[dict[str, Any]] = kept(SealableJSONB, server_default=text("'{}'"))
    context: Mapped[dict[str, Any] | None] = kept(ReadableJSONB(none_as_null=True))
    key_digest: Mapped[bytes | None] = kept(LargeBinary)
    version: Mapped[int] = kept(server_default="1")
    error_count: Mapped[int] = kept(server_default="0")
    last_error: Mapped[str | None] = kept(Text)
    failed_at: Mapped[datetime | None] = kept(Instant)
    enqueued_at: Mapped[datetime] = kept(Instant, server_default=func.now())
    finished_at: Mapped[datetime | None] = kept(Instant)
    expired_at: Mapped[datetime | None] = kept(Instant)

    if TYPE_CHECKING:
        delay: InitVar[str | timedelta | None] = None

    __mapper_args__ = {
        "polymorphic_on": "job_class",
        "version_id_col": version,
        "version_id_generator": following,
        "eager_defaults": False,
    }

    def __init_subclass__(
        cls,
        *,
        policy: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        name: str | None = None,
        **unknown: Never,
    ) -> None:
        header = {"policy": policy, "queue": queue, "priority": priority, "name": name, **unknown}
        declare(cls, Job, header)
        with adopt(cls, Job, _declared):
            super().__init_subclass__()

    @classmethod
    def __table_cls__(cls, name: str, *args: Any, **kw: Any) -> Table:
        """Only the job table passes over repeats; a job class's own table is a plain one."""
        return (JobTable if name == JOBS else Table)(name, *args, **kw)

    @classmethod
    def stored_names(cls) -> set[str]:
        """The names under which the jobs of this class, and of the classes that inherit it, are stored."""
        return {name for name, declared in _declared.items() if issubclass(declared, cls)}

    def __init__(
        self,
        *,
        run_at: Any = None,
        delay: str | timedelta | None = None,
        queue: str | None = None,
        priority: int | None = None,
        **given: Any,
    ) -> None:
        declaration = self.__magik__
        if type(self) is Job or declaration.name not in _declared:
            raise EnqueueError(
                "MAGIK_ARGS_INVALID", f"{type(self).__name__} has no jobs of its own: build one of a job class."
            )
        own = {name: given.pop(name) for name in list(given) if name not in declaration.arguments}
        for name in own:  # first of all: of a misspelt argument it would be said that it is missing
            self._refuse_unknown(name, declaration.arguments.keys() - given.keys())
        vars(self).update(  # what needs no check, past SQLAlchemy's events: they are half of what building a job costs
            _NOTHING,
            id=uuid7(),
            version=1,
            error_count=0,
            queue=declaration.queue,
            priority=declaration.priority,
            context=carried_context(),
        )
        if queue is not None:
            self.queue = queue
        if priority is not None:
            self.priority = priority
        if (moment := due(run_at, delay)) is not None:
            self.run_at = moment
        fill(self, given)
        for name, value in own.items():
            setattr(self, name, value)

    def _refuse_unknown(self, name: str, left: AbstractSet[str]) -> None:
        """A keyword that is no argument has to be a column or relationship of a class with a table of its own."""
        own = {*type(self).__mapper__.attrs.keys()} - {*Job.__mapper__.attrs.keys()}
        if name not in own:
            near = meant(name, {*left, *own, *OPTIONS}, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise invalid(name, f"{self.__magik__.name} has no such argument{hint}")

    @validates("queue")
    def _check_queue(self, field: str, value: object) -> str:
        return storable(value, field)

    @validates("priority")
    def _check_priority(self, field: str, value: object) -> int:
        return whole(value, field)

    @validates("run_at")
    def _check_run_at(self, field: str, value: object) -> Any:
        return aware(value, field)

    @property
    def is_repeat(self) -> bool:
        """Whether the last flush, or `bulk_enqueue`, found a live job of this class and key, and so added nothing."""
        return REPEAT in self.__dict__

    @property
    def repeat_of(self) -> UUID | None:
        """The id of the live job that this one repeats; None if it was gone already, or if this is no repeat."""
        found: UUID | None = self.__dict__.get(REPEAT)
        return found

    @property
    def stopping(self) -> bool:
        """Whether the worker that performs this job wants to end. A long job may save where it is, and return."""
        asked: Callable[[], bool] | None = self.__dict__.get("_magik_stopping")
        return asked is not None and asked()

    def perform(self, *session: Any, **_: Any) -> None:
        """The work, to be written as ``perform(self, session)``, or as ``perform(self)`` where it needs no database.

        What is written through `session` goes with the job: both are committed, or neither is.
        """
        raise NotImplementedError

    def on_failure(self, session: Session, error: BaseException) -> None:
        """Called once, when the tries are used up, in a Session of its own. Does nothing unless overridden."""

    @classmethod
    def on_schedule(cls, session: Session, *args: Any, **kwargs: Any) -> Iterable[Job]:  # noqa: ARG003
        """The jobs of one tick, of this class and of others.

        Called in the transaction that claims the tick, with the schedule's `args` as keywords.

        One job with these arguments unless overridden: by ``on_schedule(cls, session)``, or with a parameter for each
        of the `args`.
        """
        yield cls(**kwargs)

    def __repr__(self) -> str:
        return described(self)


OPTIONS: Final = ("run_at", "delay", "queue", "priority")  # keywords of every job
REPEAT: Final = "_magik_repeat_of"
_declared: dict[str, type[Job]] = {}


def class_of(name: str) -> type[Job]:
    """The job class of this process that is stored under this name."""
    return _declared[name]


def declared() -> dict[str, type[Job]]:
    """Every job class of this process by its stored name, those without jobs (abstract ones, `UnknownJob`) left out."""
    return dict(_declared)
