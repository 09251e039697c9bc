"""Figures of a case, and what is made of several."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

Figures = dict[str, float]


class Unsound(RuntimeError):
    """What was measured is not what should have happened: a job lost, run twice, or left."""


def percentile(values: Iterable[float], part: float) -> float:
    """The value that `part` of them (0 to 1) do not exceed. Raises `Unsound` where there are none."""
    ordered = sorted(values)
    if not ordered:
        raise Unsound("there is nothing to take a percentile of")
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def spread(milliseconds: Sequence[float]) -> Figures:
    """Percentiles of waits."""
    return {
        "p50": percentile(milliseconds, 0.5),
        "p95": percentile(milliseconds, 0.95),
        "p99": percentile(milliseconds, 0.99),
        "max": max(milliseconds),
    }


median = statistics.median
