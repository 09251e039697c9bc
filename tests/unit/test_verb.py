"""Policies: one function a verb, and nothing allowed that nobody spoke for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest
from sqlalchemy.orm import Session

from magik_sa import DeclarationError, Job, RunError, policy
from magik_sa.verb import authorise, verbs


class FreeForAll(Job, policy="system"):
    def perform(self, session: Session) -> None: ...


class Governed(Job, policy="test_verb.govern"):
    def perform(self, session: Session) -> None: ...


class Lawless(Job, policy="test_verb.nobody"):
    def perform(self, session: Session) -> None: ...


class Speechless(Job):
    def perform(self, session: Session) -> None: ...


asked: list[Any] = []


@policy("test_verb.govern")
def govern(job: Governed, session: Session) -> bool:
    asked.append((job, session))
    return job.priority < 50


def test_system_asks_nobody() -> None:
    assert authorise(FreeForAll(), Session())


def test_a_verb_asks_its_function_with_the_job_and_the_session() -> None:
    job, session = Governed(priority=1), Session()
    assert authorise(job, session)
    assert asked[-1] == (job, session)
    assert not authorise(Governed(priority=99), session)


@pytest.mark.parametrize("cls", [Lawless, Speechless])
def test_without_a_policy_nothing_is_allowed(cls: type[Job]) -> None:
    assert not authorise(cls(), Session())


def test_a_verb_has_one_policy() -> None:
    def other(job: Any, session: Session) -> bool:
        return True

    with pytest.raises(DeclarationError) as refused:
        policy("test_verb.govern")(other)
    assert refused.value.code == "MAGIK_NAME_TAKEN"
    assert verbs["test_verb.govern"] is govern


def test_the_same_function_made_again_takes_the_place_of_the_older() -> None:
    def made() -> Any:
        def rule(job: Any, session: Session) -> bool:
            return True

        return rule

    policy("test_verb.again")(made())
    newer = policy("test_verb.again")(made())
    assert verbs["test_verb.again"] is newer


def test_a_forgotten_verb_and_the_reserved_one_are_refused() -> None:
    with pytest.raises(DeclarationError, match="MAGIK_OPTION_INVALID"):
        policy(govern)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="MAGIK_NAME_RESERVED"):
        policy("system")


async def later(job: Any, session: Session) -> bool:
    return False


def bit_by_bit(job: Any, session: Session) -> Iterator[bool]:
    yield False


async def later_bit_by_bit(job: Any, session: Session) -> AsyncIterator[bool]:
    yield False


class Later:
    async def __call__(self, job: Any, session: Session) -> bool:
        return False


@pytest.mark.parametrize(
    "function",
    [
        later,
        bit_by_bit,
        later_bit_by_bit,
        Later(),
        partial(later),
        lambda _: False,
        lambda _, __, ___: False,
        lambda *, _: False,
        lambda: False,
        None,
    ],
)
def test_what_could_not_be_asked_is_no_policy(function: Any) -> None:
    with pytest.raises(
        DeclarationError, match=r"MAGIK_OPTION_INVALID: .*test_verb\.misfit.* plain function"
    ) as refused:
        policy("test_verb.misfit")(function)
    assert refused.value.field == "policy"
    assert "test_verb.misfit" not in verbs


answers: list[Any] = []


@policy("test_verb.answers")
def answering(job: Any, session: Session) -> Any:
    return answers.pop()


class Answered(Job, policy="test_verb.answers"):
    def perform(self, session: Session) -> None: ...


@pytest.mark.parametrize("answer", [None, 0, 1, "no", [], object(), NotImplemented, lambda: False])
def test_only_true_and_false_decide(answer: Any) -> None:
    answers.append(answer)
    with pytest.raises(RunError, match="MAGIK_POLICY_INVALID") as undecided:
        authorise(Answered(), Session())
    assert undecided.value.field == "policy"
    assert f"returned {type(answer).__name__}," in undecided.value.what


@pytest.mark.filterwarnings("error")
def test_a_coroutine_that_a_policy_hands_on_is_no_leave_and_is_closed() -> None:
    answers.append(later(None, Session()))
    with pytest.raises(RunError, match="coroutine"):
        authorise(Answered(), Session())


def test_a_policy_with_more_parameters_that_have_defaults_is_one() -> None:
    @policy("test_verb.more")
    def more(job: Any, session: Session, *, strict: bool = True) -> bool:
        return strict

    assert verbs["test_verb.more"] is more
