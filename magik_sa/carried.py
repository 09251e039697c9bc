"""What travels with a job: the actor, the tenant, the trace of the request that added it.

The application sets it (``context.set({"actor": "ada"})``); every job that is built meanwhile carries a copy in
its `context` column, and where the job is performed the same is set again.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final

from .storable import invalid

try:
    _trace: Any = import_module("opentelemetry.trace.propagation.tracecontext").TraceContextTextMapPropagator()
except ImportError:  # without OpenTelemetry no trace travels
    _trace = None

context: Final[ContextVar[Mapping[str, Any]]] = ContextVar("magik_sa.context", default=MappingProxyType({}))


def carried() -> dict[str, Any] | None:
    """A copy of the context as it is here and now, with the W3C `traceparent` if there is one; None if it is empty.

    Raises ``MAGIK_ARGS_INVALID`` for a context that is no mapping.
    """
    here: object = context.get()
    if not isinstance(here, Mapping):
        raise invalid("context", f"is a {type(here).__name__} and no mapping")
    copy = dict(here)
    if _trace is not None:
        _trace.inject(copy)
    return copy or None


def is_carried(before: Mapping[str, Any] | None) -> bool:
    """Whether a job that is built now would carry the same as one before."""
    if _trace is None:
        return context.get() == (before or {})
    return carried() == before
