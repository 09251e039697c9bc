"""Policies: one function a verb, and nothing allowed that nobody spoke for."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.orm import Session

from magik_sa import DeclarationError, Job, policy
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
