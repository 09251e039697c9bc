"""What others call the states of a job leads to those that there are."""

from __future__ import annotations

import pytest

from magik_sa import EnqueueError
from magik_sa.acting import STATES, Filter
from magik_sa.acting.states import ALSO, no_state


@pytest.mark.parametrize(
    ("word", "states", "meant"),
    [
        ("dead", STATES, "; did you mean expired?"),
        ("dead letter", STATES, "; did you mean expired?"),
        ("Failed", STATES, "; did you mean errored or expired?"),
        ("failed", ("expired", "finished"), "; did you mean expired?"),
        ("complete", STATES, "; did you mean finished?"),
        ("shceduled", STATES, "; did you mean scheduled?"),
        ("done", ("ready", "expired"), "."),
        ("blue", STATES, "."),
    ],
)
def test_a_word_that_is_no_state_is_led_to_one(word: str, states: tuple[str, ...], meant: str) -> None:
    assert no_state(word, states) == f"is none of {', '.join(states)}{meant}"


def test_what_is_meant_is_a_state_and_what_is_said_for_it_is_none() -> None:
    assert {state for meant in ALSO.values() for state in meant} == set(STATES)
    assert not {*ALSO} & {*STATES}


def test_a_filter_says_the_same() -> None:
    with pytest.raises(EnqueueError, match="MAGIK_FILTER_INVALID: state: .*; did you mean expired\\? Correct"):
        Filter(states=["dead"])
