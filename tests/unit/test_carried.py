"""What travels: a copy of the context, taken when the job is built."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy.orm import Session

import magik_sa
from magik_sa import EnqueueError, Job, carried, context


class Traveller(Job, policy="system"):
    def perform(self, session: Session) -> None: ...


@pytest.fixture
def put() -> Iterator[Any]:
    token = context.set({})
    yield context.set
    context.reset(token)


def test_without_a_context_nothing_travels() -> None:
    assert Traveller().context is None


def test_a_job_carries_a_copy_of_the_context_it_was_built_in(put: Any) -> None:
    mine = {"actor": "ada", "tenant": 7}
    put(mine)
    job = Traveller()
    mine["actor"] = "bob"
    assert job.context == {"actor": "ada", "tenant": 7}


def test_the_package_names_the_variable_and_not_a_module() -> None:
    assert magik_sa.context is carried.context


@pytest.mark.parametrize(
    "value",
    [{1: 2}, {"a": object()}, {"a": float("nan")}, {"a": "\0"}, {"a": (1,)}, {"a": "x" * 300_000}, None, 3, [1]],
)
def test_what_is_not_plain_json_cannot_travel(put: Any, value: Any) -> None:
    put(value)
    with pytest.raises(EnqueueError) as refused:
        Traveller()
    assert (refused.value.code, refused.value.field) == ("MAGIK_ARGS_INVALID", "context")


def test_a_trace_rides_along_where_opentelemetry_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Propagator:
        def inject(self, carrier: dict[str, Any]) -> None:
            carrier["traceparent"] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    monkeypatch.setattr(carried, "_trace", Propagator())
    assert Traveller().context == {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
