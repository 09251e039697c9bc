"""The arithmetic of the benchmarks: a ratio is of one round, and a goal says what it says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.goals import GOALS, PEER, Goal, Round, verdicts
from benchmarks.limits import read
from benchmarks.peers import chosen
from benchmarks.record import Record
from benchmarks.report import between, lines
from benchmarks.results import Results
from benchmarks.scenarios import ALL

SLOW: Round = {"magik_sa": {"rate": 30.0}, "D10": {"rate": 10.0}, "oban": {"rate": 6.0}, "pgqueuer": {"rate": 12.0}}
FAST: Round = {
    "magik_sa": {"rate": 100.0},
    "D10": {"rate": 100.0},
    "oban": {"rate": 20.0},
    "pgqueuer": {"failed": "why"},
}


def test_a_ratio_is_of_one_round_and_the_median_of_these_counts() -> None:
    found = {verdict.goal.under: verdict for verdict in verdicts("drain", [SLOW, FAST, SLOW])}
    assert found["D10"].values == (3.0, 1.0, 3.0)
    assert found["D10"].median == 3.0
    assert found["D10"].met


def test_the_best_peer_is_that_of_the_round_and_one_that_failed_is_none() -> None:
    found = {verdict.goal.under: verdict for verdict in verdicts("drain", [SLOW, FAST])}
    assert found[PEER].values == (2.5, 5.0)


def test_a_goal_without_its_cases_has_no_verdict() -> None:
    assert not list(verdicts("drain", [{"magik_sa": {"rate": 1.0}}, {}]))


@pytest.mark.parametrize(("most", "met"), [(False, [False, True, True]), (True, [True, True, False])])
def test_a_bound_is_met_by_what_equals_it(most: bool, met: list[bool]) -> None:
    goal = Goal("drain", "magik_sa", "rate", 2.0, most=most)
    assert [goal.met(value) for value in (1.9, 2.0, 2.1)] == met


def test_every_goal_is_of_a_figure_that_its_scenario_shows() -> None:
    assert [goal for goal in GOALS if goal.figure not in ALL[goal.scenario].shown] == []
    assert {goal.scenario for goal in GOALS} == ALL.keys() - {"threads"}


def test_the_report_has_each_goal_and_each_case(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json")
    results.add("drain", SLOW)
    results.add("drain", FAST)
    page = "\n".join(lines(Results(results.file)))
    assert "| drain | magik_sa | rate | 2 (1 to 3) | ≥ 2 x D10 | yes |" in page
    assert "| drain | magik_sa, two processes | rate | not measured | ≥ 1.4 x magik_sa | - |" in page
    assert "| pgqueuer (failed 1 x: why) | 12 |" in page


def test_figures_have_the_digits_that_mean_something() -> None:
    assert between([1234.5]) == "1,234"
    assert between([0.98765, 2.0, 3.0]) == "2 (0.988 to 3)"


def test_what_pgbench_says_is_read() -> None:
    said = "number of transactions actually processed: 1234\ntps = 456.789012 (without initial connection time)\n"
    assert read(said) == (1234, 456.789012)


def test_a_record_counts_starts_and_finds_those_that_came_twice(tmp_path: Path) -> None:
    record = Record(tmp_path / "record")
    record.path.write_text("# 7 1500000000\n1 10\n2 20\n")
    assert record.count() == 2
    with record.path.open("a") as file:
        file.write("# 8 500000000\n1 30\n")
    assert (record.count(), record.repeated(), record.first()) == (3, [1], {1: 10, 2: 20})
    assert record.cpu_before() == 2.0


def test_a_peer_that_is_not_installed_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    assert chosen("oban,pgqueuer-100", ()) == ([], ["oban", "pgqueuer-100"])
    assert chosen("none", ("oban",)) == ([], [])
    with pytest.raises(KeyError, match="no such peer: osban"):
        chosen("osban", ())
