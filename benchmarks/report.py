"""The results as Markdown: the goals first, then every scenario's table, then who was measured how."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from .figures import median
from .goals import GOALS, Verdict, verdicts
from .results import Results
from .scenarios import ALL

UNITS: Final = {
    "rate": "a second",
    "starts": "starts a second",
    "worker_cpu": "worker CPU, µs a job",
    "server_cpu": "server CPU, µs a job",
    "peak": "peak memory, MiB",
    "core": "% of a core",
    "server_core": "% of a core, the server",
    "statements": "statements a second",
    "claim_ms": "a claim, ms",
    "first_claim": "a claim in the first tenth, ms",
    "last_claim": "in the last, ms",
    "claim": "ratio",
    "kept": "last tenth / first",
    "first_p50": "p50 first",
    "last_p50": "p50 last",
    "dead": "dead rows",
}


def number(value: float) -> str:
    """Three digits at least, none that means nothing."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def between(values: Sequence[float]) -> str:
    """The median, and of several the smallest and the largest."""
    least, most = number(min(values)), number(max(values))
    return number(median(values)) + (f" ({least} to {most})" if len(values) > 1 else "")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of Markdown."""
    for row in (head, ["---"] * len(head), *rows):
        yield "| " + " | ".join(row) + " |"


def goal_rows(results: Results, scenarios: Sequence[str]) -> list[list[str]]:
    """Figure, goal, met; a goal that nothing was measured for says so."""
    rows = []
    for name in scenarios:
        found = {verdict.goal: verdict for verdict in verdicts(name, results.rounds(name))}
        rows += [_goal_row(goal, found.get(goal)) for goal in GOALS if goal.scenario == name]
    return rows


def _goal_row(goal: Any, verdict: Verdict | None) -> list[str]:
    what = [goal.scenario, goal.over, goal.figure]
    if verdict is None:
        return [*what, "not measured", goal.text, "-"]
    return [*what, between(verdict.values), goal.text, "yes" if verdict.met else "**no**"]


GOALS_HEAD: Final = ("scenario", "case", "figure", "measured", "goal", "met")


def scenario_lines(results: Results, name: str) -> Iterator[str]:
    """One scenario: a row for each case."""
    rounds, scenario = results.rounds(name), ALL[name]
    cases = list(dict.fromkeys(case for cases in rounds for case in cases))
    yield from (f"## {name}", "", f"{scenario.title}. {len(rounds)} round(s).", "")
    head = ["", *(UNITS.get(figure, figure.replace("_", " ")) for figure in scenario.shown)]
    yield from table(head, [_row(case, rounds, scenario.shown) for case in cases])
    yield ""


def _row(case: str, rounds: list[dict[str, Any]], shown: Sequence[str]) -> list[str]:
    found = [cases[case] for cases in rounds if case in cases]
    cells = []
    for figure in shown:
        values = [float(each[figure]) for each in found if figure in each]
        cells.append(between(values) if values else "-")
    failed = [each["failed"] for each in found if "failed" in each]
    return [case + (f" (failed {len(failed)} x: {_short(failed[0])})" if failed else ""), *cells]


def _short(text: str) -> str:
    return text.replace("\n", " ").replace("|", "/")[:160]


def lines(results: Results) -> Iterator[str]:
    """All of it."""
    measured = [name for name in ALL if results.rounds(name)]
    last = [results.scenarios[name][-1] for name in measured]
    yield from ("# Benchmarks: results", "", *_head(last))
    yield from table(GOALS_HEAD, goal_rows(results, list(ALL)))
    yield from ("", f"![Side by side]({results.file.stem}.svg)", "")
    for name in measured:
        yield from scenario_lines(results, name)
    yield from ("## Who", "")
    for name, info in results.contenders.items():
        said = "; ".join(f"{key}: {value}" for key, value in {**info["versions"], **info["settings"]}.items())
        yield f"* **{name}** {said}"


def _head(last: list[dict[str, Any]]) -> Iterator[str]:
    if last:
        newest = max(last, key=lambda each: str(each["at"]))
        where = f"{newest['cores']} cores, Python {newest['python']}"
        yield f"Written by `python -m benchmarks report`; last measured {newest['at']} ({where})."
        yield "Each figure is the median of its rounds, with the least and the most; each ratio is of one round."
        yield "On another machine only the ratios mean something."
        yield ""


def goals(results: Results, scenarios: Sequence[str]) -> str:
    """For the terminal: the goals of what was measured."""
    return "\n".join(table(GOALS_HEAD, goal_rows(results, scenarios)))
