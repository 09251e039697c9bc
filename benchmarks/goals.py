"""What the queue is to reach, once and as data: ratios of cases of one round, and a few figures of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .figures import median
from .peers import NAMES

PEER: Final = "the best peer"
Round = Mapping[str, Mapping[str, Any]]  # figures, or what failed, by the case's name


@dataclass(frozen=True)
class Goal:
    """`figure` of the case `over`, divided by that of `under` where there is one, is at least (or at most) `bound`.

    `PEER` as `under` is the peer whose figure is the largest in that round.
    """

    scenario: str
    over: str
    figure: str
    bound: float
    under: str | None = None
    most: bool = False
    unit: str = ""

    @property
    def text(self) -> str:
        """As the report says it."""
        sign = "≤" if self.most else "≥"
        return f"{sign} {self.bound:g} x {self.under}" if self.under else f"{sign} {self.bound:g} {self.unit}".strip()

    def value(self, cases: Round) -> float | None:
        """What one round came to; None where a case of it is missing or has failed."""
        over = cases.get(self.over, {}).get(self.figure)
        if self.under is None or over is None:
            return over
        under = self._under(cases)
        return over / under if under else None

    def _under(self, cases: Round) -> float | None:
        names = NAMES & cases.keys() if self.under == PEER else {self.under or ""}
        return max(
            (float(cases[name][self.figure]) for name in names if self.figure in cases.get(name, {})), default=None
        )

    def met(self, value: float) -> bool:
        """Whether that is enough."""
        return value <= self.bound if self.most else value >= self.bound


@dataclass(frozen=True)
class Verdict:
    """What the rounds of a goal came to."""

    goal: Goal
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """What counts."""
        return median(self.values)

    @property
    def met(self) -> bool:
        """Whether it is reached."""
        return self.goal.met(self.median)


def verdicts(scenario: str, rounds: Sequence[Round]) -> Iterator[Verdict]:
    """Of the goals of a scenario, those for which there are figures."""
    for goal in GOALS:
        if goal.scenario == scenario:
            values = tuple(value for cases in rounds if (value := goal.value(cases)) is not None)
            if values:
                yield Verdict(goal, values)


OURS: Final = "magik_sa"
TWO: Final = "magik_sa, two processes"
BY_DRIVER: Final = "magik_sa, by the driver"
NO_TRIGGERS: Final = "no triggers"

GOALS: Final = (
    Goal("drain", OURS, "rate", 2.5, PEER),
    Goal("drain", OURS, "rate", 2.0, "D10"),
    Goal("drain", TWO, "rate", 1.4, OURS),
    Goal("db-add", OURS, "rate", 0.85, "the bare loop"),
    Goal("db-add", TWO, "rate", 1.4, OURS),
    Goal("db-insert", OURS, "rate", 0.75, "the bare loop"),
    Goal("db-insert", OURS, "rate", 1.0, PEER),
    Goal("db-insert", BY_DRIVER, "rate", 1.0, PEER),
    Goal("enqueue", OURS, "rate", 0.9, "a plain ORM insert"),
    Goal("bulk", OURS, "rate", 1.5, PEER),
    Goal("bulk", OURS, "rate", 5.0, "I10"),
    Goal("latency", OURS, "p50", 1.5, most=True, unit="ms"),
    Goal("latency", OURS, "p99", 4.0, most=True, unit="ms"),
    Goal("producers", OURS, "rate", 0.9, NO_TRIGGERS),
    Goal("producers-worker", OURS, "rate", 0.6, NO_TRIGGERS),
    Goal("producers-worker", "magik_sa, 400/s", "p50", 1.0, "plain notify, 400/s", most=True),
    Goal("snapshot", OURS, "kept", 0.95, unit="of the first tenth"),
    Goal("snapshot", OURS, "claim", 1.5, most=True, unit="of the first tenth"),
    Goal("snapshot-long", OURS, "kept", 0.95, unit="of the first tenth"),
    Goal("snapshot-long", OURS, "claim", 1.5, most=True, unit="of the first tenth"),
    Goal("scheduled", "beside 200,000, PostgreSQL 18", "rate", 0.95, "alone, PostgreSQL 18"),
    Goal("scheduled", "beside 200,000, PostgreSQL 15", "rate", 0.95, "alone, PostgreSQL 15"),
    Goal("head", "behind 5,000 locked rows", "claim_ms", 2.0, "alone", most=True),
    Goal("head", "behind 5,000 of unknown classes", "claim_ms", 2.0, "alone", most=True),
    Goal("killed", OURS, "all", 500.0, most=True, unit="ms"),
    Goal("memory", OURS, "idle", 80.0, most=True, unit="MiB"),
    Goal("memory", OURS, "after", 80.0, most=True, unit="MiB"),
    Goal("memory", OURS, "grown", 2.0, most=True, unit="MiB in the second half of the jobs"),
    Goal("idle", OURS, "core", 0.5, most=True, unit="% of a core"),
    Goal("idle", OURS, "statements", 3.0, most=True, unit="a second"),
)
