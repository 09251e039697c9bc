"""Making a job class: what it says is read at once, and a wrong word is an error at import."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, ClassVar
from uuid import UUID

import pytest
from pydantic import Field
from sqlalchemy import Column, Integer
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, declarative_base, mapped_column

from magik_sa import DeclarationError, EnqueueError, Job, Retries, UnknownJob, arg
from magik_sa.job import declared

if TYPE_CHECKING:
    from decimal import Decimal


class Gone(Exception):
    """What a job may be discarded on."""


class TenantJob(Job, policy="system", queue="tenants"):
    __abstract__ = True
    retries = Retries(times=1)
    money = True
    tenant_id: Mapped[UUID] = arg()


class Priced:
    price: Mapped[Annotated[int, Field(ge=0)]] = arg(default=0)
    currency: Mapped[str]


class Pay(Priced, TenantJob, priority=5, name="payments.pay"):
    idempotent_by: ClassVar[str | tuple[str, ...]] = "tenant_id"
    discard_on = Gone
    keep = "7d"
    note: Mapped["str | None"] = arg(default=None)  # noqa: UP037

    def perform(self, session: Session) -> None: ...


class PayTwice(Pay, queue="twice"):
    idempotent_by = ("tenant_id", "note")
    keep = "1d"
    price: Mapped[int] = arg(default=2)


Maker = Callable[[], type[Job]]
makers: list[tuple[str, str, Maker]] = []


def refused(code: str, field: str) -> Callable[[Maker], Maker]:
    """A class that cannot be made, with the error it has to raise."""

    def add(maker: Maker) -> Maker:
        makers.append((code, field, maker))
        return maker

    return add


def made(header: dict[str, Any] | None = None, bases: tuple[type, ...] = (Job,), /, **body: Any) -> type[Job]:
    """A job class out of words, as if they stood in a class statement."""
    words = {"__module__": __name__, "__qualname__": "Made", "perform": lambda *_: None, **body}
    meta: Any = type(Job)
    cls: type[Job] = meta(
        "Made", bases, {word: value for word, value in words.items() if value is not None}, **header or {}
    )
    return cls


def test_the_header_and_the_body_are_read() -> None:
    said = Pay.__magik__
    assert (said.name, said.queue, said.priority, said.policy) == ("payments.pay", "tenants", 5, "system")
    assert (said.idempotent_by, said.discard_on, said.keep, said.money) == (
        ("tenant_id",),
        (Gone,),
        timedelta(days=7),
        True,
    )
    assert said.retries == Retries(times=1)
    assert set(said.arguments) == {"tenant_id", "price", "currency", "note"}


def test_a_subclass_says_only_what_differs() -> None:
    said = PayTwice.__magik__
    assert (said.name, said.queue, said.priority) == ("PayTwice", "twice", 5)
    assert (said.idempotent_by, said.keep) == (("note", "tenant_id"), timedelta(days=1))
    assert PayTwice(tenant_id=UUID(int=1), currency="EUR").price == 2  # type: ignore[call-arg]
    assert Pay(tenant_id=UUID(int=1), currency="EUR").price == 0  # type: ignore[call-arg]


class Slow(Job, queue="slow", priority=200):
    __abstract__ = True


class Patient:
    retries: ClassVar[Retries] = Retries(times=20)
    reason: Mapped[str] = arg(default="")


class SlowTenant(Patient, TenantJob, Slow):
    idempotent_by = "tenant_id"

    def perform(self, session: Session) -> None: ...


class HastyTenant(SlowTenant, priority=1):
    retries = Retries(times=0)


class HastyAgain(HastyTenant):
    pass


def test_mixins_and_several_parents_speak_in_the_order_of_python() -> None:
    said = SlowTenant.__magik__
    assert (said.queue, said.priority, said.policy, said.retries.times) == ("tenants", 200, "system", 20)
    assert set(said.arguments) == {"tenant_id", "reason"}
    assert (HastyTenant.__magik__.priority, HastyTenant.__magik__.retries.times) == (1, 0)
    again = HastyAgain.__magik__
    assert (again.name, again.priority, again.retries.times, again.queue) == ("HastyAgain", 1, 0, "tenants")
    assert HastyAgain(tenant_id=UUID(int=1), reason="x").reason == "x"  # type: ignore[call-arg]


def test_a_mixin_is_read_as_strictly_as_a_job_class() -> None:
    class Hasty:
        retry = 3

    with pytest.raises(DeclarationError, match="did you mean retries"):
        made({}, (Hasty, Slow))


def test_only_classes_with_jobs_are_declared() -> None:
    assert declared()["payments.pay"] is Pay
    assert not {"TenantJob", "Job"} & declared().keys()
    assert UnknownJob not in declared().values()
    assert Pay.stored_names() == {"payments.pay", "PayTwice"}
    assert {"payments.pay", "PayTwice", "SlowTenant"} <= TenantJob.stored_names()


def test_defaults_of_a_declaration() -> None:
    said = made({"name": "defaults"}).__magik__
    assert (said.queue, said.priority, said.policy, said.retries) == ("default", 100, None, Retries())
    assert (said.idempotent_by, said.discard_on, said.keep, said.money) == (None, (), None, False)


@pytest.mark.parametrize(
    "word",
    [
        "retry",
        "retires",
        "idempotent",
        "discard",
        "keeps",
        "monye",
        "schedules",
        "cron",
        "timeout",
        "queue",
        "policy",
        "priority",
        "name",
    ],
)
def test_a_word_that_looks_like_an_option_is_refused(word: str) -> None:
    with pytest.raises(DeclarationError) as error:
        made(**{word: "5"})
    assert (error.value.code, error.value.field) == ("MAGIK_OPTION_UNKNOWN", word)


@pytest.mark.parametrize("word", ["polciy", "que", "retries", "idempotent_by", "schedule", "colour"])
def test_an_unknown_word_in_the_header_is_refused(word: str) -> None:
    with pytest.raises(DeclarationError) as error:
        made({word: 1})
    assert (error.value.code, error.value.field) == ("MAGIK_OPTION_UNKNOWN", word)


@pytest.mark.parametrize("word", ["preform", "on_fail", "on_shedule"])
def test_a_method_that_looks_like_one_of_ours_is_refused(word: str) -> None:
    perform = {"perform": None} if word == "preform" else {}
    with pytest.raises(DeclarationError) as error:
        made(**{word: Pay.perform, **perform})
    assert (error.value.code, error.value.field) == ("MAGIK_OPTION_UNKNOWN", word)


def test_a_timeout_is_told_where_it_belongs() -> None:
    with pytest.raises(DeclarationError, match=r"timeout: belongs into retries = Retries\(timeout=…\)"):
        made(timeout="30s")
    assert made(retries=Retries(timeout="30s")).__magik__.retries.timeout == timedelta(seconds=30)


def test_retries_under_another_name_are_refused() -> None:
    with pytest.raises(DeclarationError, match="did you mean retries"):
        made(again=Retries())


def test_what_the_application_needs_for_itself_is_left_alone() -> None:
    class Helper: ...

    cls = made(
        {"name": "free"},
        LIMIT=5,
        mode="fast",
        Helper=Helper,
        _keep=3,
        helper=lambda *_: 1,
        kind=property(lambda _: 2),
    )
    assert (cls.LIMIT, cls.mode) == (5, "fast")  # type: ignore[attr-defined]


def test_a_class_variable_that_says_so_is_no_misspelling() -> None:
    class Counted(Job, policy="system"):
        keeps: ClassVar[int] = 3

        def perform(self, session: Session) -> None: ...

    assert Counted.keeps == 3


@pytest.mark.parametrize(
    ("header", "body", "field"),
    [
        ({"queue": ""}, {}, "queue"),
        ({"queue": "😀" * 64}, {}, "queue"),
        ({"queue": "a\0"}, {}, "queue"),
        ({"queue": 3}, {}, "queue"),
        ({"name": "x" * 256}, {}, "name"),
        ({"policy": 3}, {}, "policy"),
        ({"priority": 2**15}, {}, "priority"),
        ({"priority": "high"}, {}, "priority"),
        ({"priority": True}, {}, "priority"),
        ({}, {"retries": 5}, "retries"),
        ({}, {"idempotent_by": 3}, "idempotent_by"),
        ({}, {"idempotent_by": ("a", "a")}, "idempotent_by"),
        ({}, {"discard_on": (Gone, "x")}, "discard_on"),
        ({}, {"money": 1}, "money"),
        ({}, {"perform": Job.perform}, "perform"),
    ],
)
def test_an_option_with_a_wrong_value_is_refused(header: dict[str, Any], body: dict[str, Any], field: str) -> None:
    with pytest.raises(DeclarationError) as error:
        made(header, **body)
    assert (error.value.code, error.value.field) == ("MAGIK_OPTION_INVALID", field)


def test_limits_of_names_are_in_bytes() -> None:
    assert made({"queue": "😀" * 63 + "abc", "name": "é" * 127 + "x"}).__magik__.queue == "😀" * 63 + "abc"


def test_a_bare_number_is_no_duration() -> None:
    with pytest.raises(DeclarationError) as error:
        made(keep=7)
    assert (error.value.code, error.value.field) == ("MAGIK_DURATION_INVALID", "keep")


def test_perform_has_to_be_an_ordinary_function() -> None:
    async def perform(self: Any, session: Session) -> None: ...

    with pytest.raises(DeclarationError, match="perform"):
        made(perform=perform)


def test_money_needs_a_key() -> None:
    with pytest.raises(DeclarationError, match="MAGIK_IDEMPOTENT_BY_REQUIRED"):
        made(money=True)


@refused("MAGIK_IDEMPOTENT_BY_UNKNOWN", "idempotent_by")
def _() -> type[Job]:
    class A(Job):
        idempotent_by = "tenant"
        tenant_id: Mapped[UUID] = arg()

        def perform(self, session: Session) -> None: ...

    return A


@refused("MAGIK_NAME_RESERVED", "queue")
def _() -> type[Job]:
    class A(Job):
        queue: Mapped[str] = arg()

        def perform(self, session: Session) -> None: ...

    return A


@refused("MAGIK_ARG_DECLARATION", "tenant_id")
def _() -> type[Job]:
    class A(Job):
        tenant_id = arg()  # pyright: ignore[reportGeneralTypeIssues]

        def perform(self, session: Session) -> None: ...

    return A


@refused("MAGIK_ARG_DECLARATION", "tenant_id")
def _() -> type[Job]:
    class A(Job):
        tenant_id: UUID = arg()  # type: ignore[assignment]

        def perform(self, session: Session) -> None: ...

    return A


@refused("MAGIK_ARG_DECLARATION", "amount")
def _() -> type[Job]:
    class A(Job):
        amount: Mapped[Decimal] = arg()  # only there for type checkers

        def perform(self, session: Session) -> None: ...

    return A


@refused("MAGIK_ARG_DECLARATION", "session")
def _() -> type[Job]:
    class A(Job):
        session: Mapped[Session] = arg()

        def perform(self, session: Session) -> None: ...

    return A


@refused("MAGIK_ARG_DECLARATION", "count")
def _() -> type[Job]:
    class A(Job):
        count: Mapped[int] = arg(default="many")  # type: ignore[arg-type]

        def perform(self, session: Session) -> None: ...

    return A


@refused("MAGIK_COLUMN_WITHOUT_TABLE", "count")
def _() -> type[Job]:
    class A(Job):
        count: Mapped[int] = mapped_column()

        def perform(self, session: Session) -> None: ...

    return A


@refused("MAGIK_COLUMN_WITHOUT_TABLE", "count")
def _() -> type[Job]:
    class A(Job):
        count = Column(Integer)

        def perform(self, session: Session) -> None: ...

    return A


@refused("MAGIK_NAME_TAKEN", "name")
def _() -> type[Job]:
    class A(Job, name="payments.pay"):
        def perform(self, session: Session) -> None: ...

    return A


@pytest.mark.parametrize(("code", "field", "maker"), makers)
def test_a_class_that_cannot_be_is_refused(code: str, field: str, maker: Maker) -> None:
    before = declared()
    with pytest.raises(DeclarationError) as error:
        maker()
    assert (error.value.code, error.value.field) == (code, field)
    assert declared() == before


@pytest.mark.parametrize(
    "name",
    [
        "id",
        "args",
        "context",
        "stopping",
        "metadata",
        "registry",
        "is_repeat",
        "delay",
        "run_at",
        "retries",
        "schedule",
        "_x",
    ],
)
def test_the_names_of_what_a_job_has_are_reserved(name: str) -> None:
    with pytest.raises(DeclarationError) as error:
        made({"name": "reserved"}, __annotations__={name: Mapped[int]})
    assert error.value.code == "MAGIK_NAME_RESERVED"


class Shop(DeclarativeBase):
    """An application's own base."""


class Invoice(Shop):
    __tablename__ = "job_class_invoice"
    id: Mapped[int] = mapped_column(primary_key=True)


class Within(Shop):
    __abstract__ = True


Old: Any = declarative_base()


@pytest.mark.parametrize("own", [Shop, Invoice, Within, Old], ids=lambda own: own.__name__)
@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
def test_a_class_does_not_also_derive_from_a_base_of_the_application(own: Any, first: bool) -> None:
    bases = (own, Job) if first else (Job, own)
    body = {"__module__": __name__, "perform": lambda *_: None}
    with pytest.raises(DeclarationError) as refused:
        types.new_class("Both", bases, {"policy": "system"}, lambda space: space.update(body))
    assert (refused.value.code, refused.value.field) == ("MAGIK_NAME_RESERVED", "registry")
    assert refused.value.what.startswith(f"Both derives from Job and from {own.__name__}: ")
    assert refused.value.remedy.startswith("Derive it from Job, and not also from your declarative base")
    assert "Both" not in declared()


def test_a_default_and_a_factory_exclude_each_other() -> None:
    with pytest.raises(DeclarationError, match="MAGIK_ARG_DECLARATION"):
        arg(default=[], default_factory=list)  # type: ignore[call-overload]


def test_a_class_made_again_takes_the_place_of_its_older_self() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = made({"name": "again"}, __annotations__={"a": Mapped[int]})
        second = made({"name": "again"}, __annotations__={"b": Mapped[int]})
        third = made({"name": "again"}, __annotations__={"c": Mapped[int]})
    assert declared()["again"] is third
    assert Job.__mapper__.polymorphic_map["again"] is third.__mapper__
    assert third(c=1).args == {"c": 1}
    assert first.stored_names() == second.stored_names() == set()


def test_a_class_that_fails_to_be_made_again_leaves_the_older_in_its_place() -> None:
    older = made({"name": "stays"})
    with pytest.raises(Exception, match="nonsense"):
        made({"name": "stays"}, __mapper_args__={"nonsense": 1})
    assert declared()["stays"] is older
    assert Job.__mapper__.polymorphic_map["stays"] is older.__mapper__


class Tenanted(Job, policy="system", name="test_job_class.Tenanted"):
    tenant_id: Mapped[int] = arg()
    month: Mapped[str] = arg(default="2026-01")

    def perform(self, session: Session) -> None: ...


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"tenant": 1}, "tenant_id"),
        ({"tenant_id": 1, "mont": "2026-02"}, "month"),
        ({"tenant_id": 1, "runat": None}, "run_at"),
        ({"tenant_id": 1, "delya": "5s"}, "delay"),
    ],
)
def test_a_misspelt_argument_is_named_before_what_is_missing(given: dict[str, Any], meant: str) -> None:
    with pytest.raises(EnqueueError) as refused:
        Tenanted(**given)
    word = list(given)[-1]
    assert refused.value.field == word
    assert refused.value.what == f"{word}: test_job_class.Tenanted has no such argument; did you mean {meant}?"


def test_no_argument_is_suggested_that_is_given_already_or_looks_nothing_alike() -> None:
    unknown: dict[str, Any] = {"tenant": 2}
    with pytest.raises(EnqueueError, match="tenant: .* has no such argument. Correct"):
        Tenanted(tenant_id=1, **unknown)
    unknown = {"iban": 2}
    with pytest.raises(EnqueueError, match="iban: .* has no such argument. Correct"):
        Tenanted(**unknown)


class Hinted(Job, policy="system", name="test_job_class.Hinted"):
    tenant_id: Mapped[int] = arg()
    limit: ClassVar[int]
    rate: ClassVar[int] = 5
    plain: int = 7
    if not TYPE_CHECKING:  # which take it for a keyword of the constructor
        _cache: dict[str, int]

    def perform(self, session: Session) -> None:
        self._cache: dict[str, int] = {}


class Unmapped(Job, policy="system", name="test_job_class.Unmapped"):
    __allow_unmapped__ = True
    note: str

    def perform(self, session: Session) -> None: ...


def test_what_is_no_attribute_of_jobs_or_private_needs_no_mapped() -> None:
    assert set(Hinted.__magik__.arguments) == {"tenant_id"}
    assert not Unmapped.__magik__.arguments
    job = Hinted(tenant_id=1)
    job.perform(Session())
    assert (vars(job)["_cache"], job.plain) == ({}, 7)
