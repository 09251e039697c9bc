"""Schedules in the body of a job class: how many, where their jobs come from, and what cannot be meant."""

from __future__ import annotations

import types
from collections.abc import AsyncIterator, Iterable
from typing import Any, ClassVar, Self
from uuid import UUID

import pytest
from sqlalchemy.orm import Mapped, Session

from magik_sa import DeclarationError, Job, Schedule, arg
from magik_sa.boot import check_schedules

HOURLY = Schedule(every="1h")
SESSION: Any = None
TENANT = UUID(int=7)


class Digest(Job, policy="system", name="schedule_class.report"):
    schedule = (
        Schedule(every="1h", args={"tenant": TENANT, "region": "eu"}),
        Schedule(cron="0 3 * * *", zone="Europe/Paris", name="us", args={"tenant": str(TENANT), "region": "us"}),
    )

    tenant: Mapped[UUID] = arg()
    region: Mapped[str] = arg()
    pages: Mapped[list[int]] = arg(default_factory=list)

    def perform(self, session: Session) -> None: ...


class Everyone(Job, policy="system", name="schedule_class.everyone"):
    schedule = (HOURLY, Schedule(every="1d", name="all", args={"most": 3}))

    tenant: Mapped[int] = arg()

    def perform(self, session: Session) -> None: ...

    @classmethod
    def on_schedule(cls, session: Session, most: int = 2) -> Iterable[Self]:
        return [cls(tenant=number) for number in range(most)]


class Hourly(Job, policy="system"):
    __abstract__ = True
    schedule: ClassVar[Schedule | tuple[Schedule, ...] | None] = HOURLY


class Inherits(Hourly, name="schedule_class.inherits"):
    def perform(self, session: Session) -> None: ...


class Without(Hourly, name="schedule_class.without"):
    schedule = None

    def perform(self, session: Session) -> None: ...


def made(header: dict[str, Any] | None = None, **body: Any) -> type[Job]:
    """A job class of this header and body."""
    body = {"__module__": __name__, "perform": lambda *_: None, "schedule": HOURLY, **body}
    header = {"policy": "system", "name": f"schedule_class.{id(body)}", **(header or {})}
    cls: type[Job] = types.new_class("Made", (Job,), header, lambda namespace: namespace.update(body))
    return cls


def refusal(**body: Any) -> DeclarationError:
    with pytest.raises(DeclarationError) as caught:
        made(**body)
    assert "\n" not in str(caught.value)
    return caught.value


def jobs(cls: type[Job], number: int) -> list[Job]:
    """What a tick of one of the schedules makes."""
    return list(cls.on_schedule(SESSION, **cls.__magik__.schedules[number].args))


def test_one_schedule_or_several_are_declared_and_none_is_none() -> None:
    assert made().__magik__.schedules == (HOURLY,)
    assert [schedule.name for schedule in Digest.__magik__.schedules] == [None, "us"]
    assert made(schedule=()).__magik__.schedules == ()
    assert Job.__magik__.schedules == ()


def test_a_schedule_is_inherited_like_any_option_and_can_be_taken_back() -> None:
    assert Inherits.__magik__.schedules == (HOURLY,)
    assert Without.__magik__.schedules == ()


def test_a_tick_makes_one_job_with_the_arguments_of_its_schedule() -> None:
    for number, region in enumerate(["eu", "us"]):
        (job,) = jobs(Digest, number)
        assert isinstance(job, Digest)
        assert (job.tenant, job.region, job.pages) == (TENANT, region, [])


def test_a_class_that_makes_its_jobs_itself_is_called_with_them() -> None:
    assert [len(jobs(Everyone, number)) for number in (0, 1)] == [2, 3]


def test_the_class_of_a_tick_is_the_one_that_has_the_schedule() -> None:
    (job,) = jobs(Inherits, 0)
    assert type(job) is Inherits


def takes_one(cls: object, session: object, most: int) -> list[Job]:
    """An on_schedule that has to be given an argument."""
    return []


def takes_none(cls: object) -> list[Job]:
    """One that takes not even the Session."""
    return []


def two(first: str | None, second: str | None) -> tuple[Schedule, Schedule]:
    return Schedule(every="1h", name=first), Schedule(every="2h", name=second)


@pytest.mark.parametrize("schedule", ["10m", 5, "* * * * *", [HOURLY], {"every": "1h"}, (HOURLY, "10m"), Schedule])
def test_what_is_no_schedule_is_refused(schedule: object) -> None:
    error = refusal(schedule=schedule)
    assert (error.code, error.field) == ("MAGIK_OPTION_INVALID", "schedule")
    assert "Schedule(every=" in error.what


@pytest.mark.parametrize("schedules", [two(None, None), two("a", "a")])
def test_two_schedules_of_a_class_have_different_names(schedules: tuple[Schedule, Schedule]) -> None:
    error = refusal(schedule=schedules)
    assert (error.code, error.field) == ("MAGIK_OPTION_INVALID", "schedule")
    assert "name=" in error.what


@pytest.mark.parametrize("schedules", [two(None, "a"), two("a", "A"), two("a", "a "), two("é", "e\u0301")])
def test_names_that_differ_in_anything_are_different(schedules: tuple[Schedule, Schedule]) -> None:
    assert made(schedule=schedules).__magik__.schedules == schedules


@pytest.mark.parametrize(
    ("word", "value", "meant"),
    [
        ("schedules", (HOURLY,), "schedule"),
        ("shedule", HOURLY, "schedule"),
        ("hourly", HOURLY, "schedule"),
        ("cron", "0 3 * * *", "schedule"),
        ("on_shedule", classmethod(takes_one), "on_schedule"),
        ("on_schedules", takes_one, "on_schedule"),
    ],
)
def test_a_misspelt_word_is_named_with_what_was_meant(word: str, value: object, meant: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        types.new_class("Made", (Job,), {"policy": "system"}, lambda body: body.update({word: value}))
    assert (caught.value.code, caught.value.field) == ("MAGIK_OPTION_UNKNOWN", word)
    assert f"did you mean {meant}?" in caught.value.what


def test_a_schedule_in_the_header_is_sent_to_the_body() -> None:
    with pytest.raises(DeclarationError, match="schedule belongs into the body") as caught:
        made({"schedule": HOURLY})
    assert (caught.value.code, caught.value.field) == ("MAGIK_OPTION_UNKNOWN", "schedule")


ARGUMENT: dict[str, Any] = {"__annotations__": {"tenant": Mapped[int]}, "tenant": arg()}
SECRET: dict[str, Any] = {"__annotations__": {"tenant": Mapped[int]}, "tenant": arg(sensitive=True)}
TAKES_ONE: Any = classmethod(takes_one)
TAKES_NONE: Any = classmethod(takes_none)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (ARGUMENT, "nothing says what 'tenant' is"),
        ({**ARGUMENT, "schedule": Schedule(every="1h", args={"tennant": 5})}, "no argument 'tennant'"),
        ({"schedule": Schedule(every="1h", args={"queue": "other"})}, "no argument 'queue'"),
        ({**ARGUMENT, "schedule": Schedule(every="1h", args={"tenant": "five"})}, "tenant: "),
        ({**SECRET, "schedule": Schedule(every="1h", args={"tenant": "five"})}, "tenant: refused"),
        ({**ARGUMENT, "schedule": Schedule(every="1h", args={"tenant": 2**70})}, "tenant: does not fit into 64 bits"),
        ({"schedule": Schedule(every="1h", args={"most": 1}), "on_schedule": TAKES_NONE}, "(session, most)"),
        ({"on_schedule": TAKES_NONE}, "does not take (session)"),
        ({"on_schedule": TAKES_ONE}, "'most'"),
        ({"on_schedule": TAKES_ONE, "schedule": Schedule(every="1h", args={"least": 1})}, "(session, least)"),
    ],
)
def test_a_schedule_without_a_source_for_its_jobs_is_refused(body: dict[str, Any], why: str) -> None:
    error = refusal(**body)
    assert (error.code, error.field) == ("MAGIK_SCHEDULE_ARGS_INVALID", "schedule")
    assert why in error.what
    assert "five" not in error.what


async def coroutine(cls: object, session: object) -> None:
    """Makes no jobs when it is called."""


async def generator(cls: object, session: object) -> AsyncIterator[None]:
    """Neither does this."""
    yield


@pytest.mark.parametrize(
    "on_schedule",
    [None, 5, takes_one, staticmethod(takes_one), *map(classmethod, [coroutine, generator])],
)
def test_an_on_schedule_that_would_make_no_jobs_is_refused(on_schedule: object) -> None:
    error = refusal(on_schedule=on_schedule)
    assert (error.code, error.field) == ("MAGIK_OPTION_INVALID", "on_schedule")


def test_an_abstract_class_may_leave_the_source_to_its_children() -> None:
    abstract = made(__abstract__=True, **ARGUMENT)
    body = {"perform": lambda *_: None, "schedule": Schedule(every="1h", args={"tenant": 5})}
    header = {"name": "schedule_class.child"}
    child = types.new_class("Child", (abstract,), header, lambda namespace: namespace.update(body))
    (job,) = jobs(child, 0)
    assert job.args == {"tenant": 5}


def test_two_classes_whose_schedules_would_share_a_row_are_refused_at_boot() -> None:
    one = made({"name": "schedule_class:a"})
    other = made({"name": "schedule_class"}, schedule=two("a", "b"))
    (error,) = check_schedules({cls.__magik__.name: cls for cls in (one, other)})
    assert (error.code, error.field) == ("MAGIK_SCHEDULE_NAME_TAKEN", "name")
    assert "'schedule_class:a'" in error.what


@pytest.mark.parametrize(("names", "schedules"), [(("a_", "a"), ("b", "_b")), (("s", "S"), ("x", "x"))])
def test_names_that_join_alike_or_differ_only_in_case_are_different_rows(
    names: tuple[str, str], schedules: tuple[str, str]
) -> None:
    classes = [
        made({"name": name}, schedule=Schedule(every="1h", name=own))
        for name, own in zip(names, schedules, strict=True)
    ]
    assert list(check_schedules({cls.__magik__.name: cls for cls in classes})) == []
