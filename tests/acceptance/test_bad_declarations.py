"""What cannot be meant in a job class is an error when the class is made, with a code and the word at fault."""

from __future__ import annotations

import types
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Mapped

from magik_sa import DeclarationError, Job, Retries, arg
from magik_sa.enqueue import declared

OPTIONS = {"retries", "idempotent_by", "discard_on", "keep", "money", "schedule", "on_schedule", "timeout", "delay"}
RESERVED = sorted(OPTIONS | {name for name in dir(Job) if not name.startswith("_")})


@pytest.fixture(autouse=True)
def _nothing_is_declared() -> Iterator[None]:
    """A class that is refused leaves nothing behind."""
    before = declared()
    yield
    assert declared() == before


def does_nothing(*_: object) -> None:
    """A perform, or another method."""


def refusal(header: dict[str, Any] | None = None, bases: tuple[type, ...] = (Job,), **body: Any) -> DeclarationError:
    """What a class of this header and body is refused for."""
    body = {"__module__": __name__, "perform": does_nothing, **body}
    with pytest.raises(DeclarationError) as caught:
        types.new_class("Refused", bases, {"policy": "system", **(header or {})}, lambda made: made.update(body))
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("name", [*RESERVED, "self", "_private"])
def test_an_argument_cannot_be_named_like_something_that_a_job_has(name: str) -> None:
    argument: dict[str, Any] = {"__annotations__": {name: Mapped[int]}, name: arg()}
    mixin = type("Mixin", (), {"__module__": __name__, **argument})
    for error in (refusal(**argument), refusal(bases=(mixin, Job))):
        assert (error.code, error.field) == ("MAGIK_NAME_RESERVED", name)


@pytest.mark.parametrize("name", sorted({*RESERVED, "self", "_private"} - {"perform"}))
def test_nor_can_one_that_is_declared_by_its_annotation_alone(name: str) -> None:
    error = refusal(__annotations__={name: Mapped[int]})
    assert (error.code, error.field) == ("MAGIK_NAME_RESERVED", name)


async def coroutine(*_: object) -> None:
    """Does nothing until it is awaited."""


def generator(*_: object) -> Iterator[None]:
    """Does nothing until it is asked for something."""
    yield


async def asynchronous_generator(*_: object) -> AsyncIterator[None]:
    """Does nothing at all."""
    yield


@pytest.mark.parametrize("perform", [None, 5, coroutine, generator, asynchronous_generator])
def test_a_perform_that_would_not_do_the_work_when_it_is_called_is_refused(perform: object) -> None:
    error = refusal(perform=perform)
    assert (error.code, error.field) == ("MAGIK_OPTION_INVALID", "perform")


def with_its_customer(_: object, customer: object) -> None:
    """As it would be written for a queue that calls a function with the arguments."""


def test_a_method_that_would_be_given_something_else_than_the_argument_of_its_parameters_name_is_refused() -> None:
    error = refusal(perform=with_its_customer, customer=arg(), __annotations__={"customer": Mapped[str]})
    assert (error.code, error.field) == ("MAGIK_OPTION_INVALID", "perform")
    assert error.what.endswith("takes customer, which is an argument of the job, and would get the session.")
    assert error.remedy == "Write `def perform(self, session)`, and self.customer in it."


def one_parameter(_: object) -> None:
    """Takes self, or the Session, and no more."""


async def asynchronous_class_method(_: type, __: object) -> None:
    """Makes no jobs."""


@pytest.mark.parametrize(
    "on_failure",
    [
        None,
        coroutine,
        generator,
        asynchronous_generator,
        one_parameter,
        lambda _, __: None,
        staticmethod(one_parameter),
    ],
)
def test_an_on_failure_that_could_not_be_called_is_refused_and_told_how_it_is_written(on_failure: object) -> None:
    error = refusal(on_failure=on_failure)
    assert (error.code, error.field) == ("MAGIK_OPTION_INVALID", "on_failure")
    assert error.remedy == "Write a plain `def on_failure(self, session, error)`."


@pytest.mark.parametrize("perform", [lambda _, __, ___: None, coroutine])
def test_a_perform_that_is_refused_is_told_how_it_is_written(perform: object) -> None:
    assert refusal(perform=perform).remedy == "Write a plain `def perform(self, session)`."


def test_a_class_without_a_perform_is_told_so() -> None:
    assert "__abstract__ = True" in refusal(perform=Job.perform).remedy


@pytest.mark.parametrize("on_schedule", [does_nothing, coroutine, classmethod(asynchronous_class_method)])
def test_an_on_schedule_that_is_refused_is_told_how_it_is_written(on_schedule: object) -> None:
    error = refusal(on_schedule=on_schedule)
    assert (error.code, error.field) == ("MAGIK_OPTION_INVALID", "on_schedule")
    assert error.remedy.startswith("Write a @classmethod `def on_schedule(cls, session)`")


OWN: dict[str, Any] = {"__tablename__": "refused"}


@pytest.mark.parametrize("own", [{}, OWN], ids=["no table", "its own table"])
@pytest.mark.parametrize("hint", [int, "int", "NoSuchType", "list[Any]", list[int]])
def test_an_argument_that_is_not_mapped_is_told_so(hint: object, own: dict[str, Any]) -> None:
    error = refusal(__annotations__={"tenant_id": hint}, **own)
    assert (error.code, error.field) == ("MAGIK_ARG_DECLARATION", "tenant_id")
    assert error.what == "Refused.tenant_id is not annotated with Mapped[...]."


MISSPELT: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("polcy", {"polcy": "system"}, {}, "policy"),
    ("Queue", {"Queue": "q"}, {}, "queue"),
    ("prio", {"prio": 1}, {}, "priority"),
    ("max_retries", {"max_retries": 3}, {}, "retries"),
    ("keep", {"keep": "7d"}, {}, "body"),
    ("idempotent_by", {"idempotent_by": "x"}, {}, "body"),
    ("colour", {"colour": "red"}, {}, "no such option"),
    ("queue", {}, {"queue": "q"}, "header"),
    ("priority", {}, {"priority": 1}, "header"),
    ("policy", {}, {"policy": "system"}, "header"),
    ("name", {}, {"name": "other"}, "header"),
    ("retry", {}, {"retry": Retries()}, "retries"),
    ("retrys", {}, {"retrys": Retries()}, "retries"),
    ("idempotentby", {}, {"idempotentby": "x"}, "idempotent_by"),
    ("unique_by", {}, {"unique_by": "x"}, "idempotent_by"),
    ("discards_on", {}, {"discards_on": (KeyError,)}, "discard_on"),
    ("keeps", {}, {"keeps": "7d"}, "keep"),
    ("mony", {}, {"mony": True}, "money"),
    ("on_fail", {}, {"on_fail": does_nothing}, "on_failure"),
]


@pytest.mark.parametrize(("field", "header", "body", "hint"), MISSPELT, ids=[each[0] for each in MISSPELT])
def test_a_misspelt_option_is_named_with_what_was_meant(
    field: str, header: dict[str, Any], body: dict[str, Any], hint: str
) -> None:
    error = refusal(header, **body)
    assert (error.code, error.field) == ("MAGIK_OPTION_UNKNOWN", field)
    assert hint in error.what


@pytest.mark.parametrize(
    "keep", [7, 7.0, True, "", "7", "7 days", "7D", "0s", "-7d", "1d7w", "7d7d", "4000d", timedelta(0), timedelta(-1)]
)
def test_a_bad_duration_is_refused_by_the_name_of_its_option(keep: object) -> None:
    error = refusal(keep=keep)
    assert (error.code, error.field) == ("MAGIK_DURATION_INVALID", "keep")
    assert '"10m"' in error.remedy


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("base", {"base": 5}),
        ("base", {"base": "5"}),
        ("base", {"base": "1m1h"}),
        ("base", {"base": "0s"}),
        ("cap", {"cap": 3600}),
        ("cap", {"base": "1h", "cap": "1m"}),
        ("times", {"times": -1}),
        ("times", {"times": 2.0}),
        ("times", {"times": True}),
        ("jitter", {"jitter": 1.5}),
        ("jitter", {"jitter": float("nan")}),
        ("backoff", {"backoff": "exponentially"}),
        ("backoff", {"backoff": None}),
    ],
)
def test_retries_that_cannot_be_are_refused_by_the_name_of_their_field(field: str, given: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError) as caught:
        Retries(**given)
    assert (caught.value.code, caught.value.field) == ("MAGIK_RETRIES_INVALID", field)


@pytest.mark.parametrize(
    ("code", "field", "header", "body"),
    [
        ("MAGIK_OPTION_INVALID", "queue", {"queue": "q" * 500}, {}),
        ("MAGIK_OPTION_INVALID", "priority", {"priority": 40000}, {}),
        ("MAGIK_OPTION_INVALID", "name", {"name": "a\0b"}, {}),
        ("MAGIK_OPTION_INVALID", "retries", {}, {"retries": 5}),
        ("MAGIK_OPTION_INVALID", "discard_on", {}, {"discard_on": KeyError()}),
        ("MAGIK_OPTION_INVALID", "money", {}, {"money": "yes"}),
        ("MAGIK_IDEMPOTENT_BY_REQUIRED", "idempotent_by", {}, {"money": True}),
        ("MAGIK_IDEMPOTENT_BY_REQUIRED", "idempotent_by", {}, {"money": True, "idempotent_by": ()}),
        ("MAGIK_IDEMPOTENT_BY_UNKNOWN", "idempotent_by", {}, {"idempotent_by": "tenant"}),
    ],
)
def test_an_option_with_a_value_that_cannot_be_is_refused(
    code: str, field: str, header: dict[str, Any], body: dict[str, Any]
) -> None:
    error = refusal(header, **body)
    assert (error.code, error.field) == (code, field)
