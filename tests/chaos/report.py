"""The table that a run ends with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from statistics import median

from .run import Outcome


def printed(outcome: Outcome) -> str:
    """All of it as text."""
    rows = [*_head(outcome), *_done(outcome), *_times(outcome), *_balance(outcome)]
    width = max(len(name) for name, _ in rows)
    table = "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
    wrong = "\n".join(outcome.imbalance.lines())
    return f"{table}\n{wrong}" if wrong else table


def _head(outcome: Outcome) -> Iterator[tuple[str, str]]:
    yield "seed, seconds of faults", f"{outcome.seed}, {outcome.seconds:g}"
    yield "faults", _counted(Counter(fault.kind for fault in outcome.struck))
    yield "workers that ended", _counted(Counter(f"code {ended.code}" for ended in outcome.ended))


def _done(outcome: Outcome) -> Iterator[tuple[str, str]]:
    told = outcome.figures
    yield (
        "asked for by producers",
        f"{told.asked}: rolled back {told.undone}, repeats {told.repeats}, commit unanswered {told.unsure}",
    )
    yield "committed", f"{told.committed}: {_counted(told.classes)}"
    yield "run", f"{told.runs} starts"
    yield "run again", f"{told.again.total()}"
    yield from ((f"  {why}", str(count)) for why, count in told.again.most_common())
    yield "dead letters", f"{told.dead}"
    yield "written in Sessions", f"{told.entries} entries, {told.bookings} bookings"
    yield "ticks", str(told.ticks)


def _times(outcome: Outcome) -> Iterator[tuple[str, str]]:
    told = outcome.figures
    for title, times in (
        ("from {} to the next start", told.recoveries),
        ("from the end of {} to a job's end", told.back),
        ("from commit to start, {}", told.wakes),
    ):
        for what, spans in sorted(times.items()):
            yield title.format(what), _spread(spans)
    yield "drained after", f"{outcome.drained:.1f} s"


def _balance(outcome: Outcome) -> Iterator[tuple[str, str]]:
    names = {
        "lost": "lost",
        "doubled": "doubled inside Sessions",
        "unasked": "jobs that were not committed",
        "ticks": "ticks without one job each",
        "left": "left over",
    }
    for kind, found in outcome.imbalance.kinds().items():
        yield names[kind], str(len(found))
    yield "balances", "no" if outcome.imbalance else "yes"


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def _spread(spans: list[float]) -> str:
    spans = sorted(spans)
    ninety_nine = spans[int(len(spans) * 0.99)]
    return f"{len(spans)}: half {_ms(median(spans))}, 99 % {_ms(ninety_nine)}, worst {_ms(spans[-1])}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1_000:.0f} ms"
