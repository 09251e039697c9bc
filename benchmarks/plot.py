"""The results as a picture: contenders side by side, from the medians of their rounds."""

# pyright: reportMissingImports=false

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from .figures import median
from .report import number
from .results import Results

PANELS: Final = (
    ("drain", "rate", "no-op jobs drained a second"),
    ("db-insert", "rate", "jobs with one insert a second"),
    ("enqueue", "rate", "enqueued one by one, a second"),
    ("bulk", "rate", "enqueued 1,000 a call, a second"),
    ("latency", "p50", "commit to start, half of them, ms"),
    ("latency", "p99", "commit to start, 99 of 100, ms"),
)
OURS: Final = "#1f6f8b"
OTHERS: Final = "#b8c4cc"


def bars(results: Results, scenario: str, figure: str) -> list[tuple[str, float, float, float]]:
    """Name, median, least and most of each case, the last of the table first: bars are drawn upwards."""
    rounds, found = results.rounds(scenario), []
    for name in dict.fromkeys(case for cases in rounds for case in cases):
        values = [float(cases[name][figure]) for cases in rounds if figure in cases.get(name, {})]
        if values:
            found.append((name, median(values), min(values), max(values)))
    return found[::-1]


def draw(results: Results, file: Path) -> None:
    """Write the picture, as SVG by the file's name. Needs matplotlib."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    mpl.rcParams["svg.hashsalt"] = "magik_sa"  # the same results give the same file
    figure, axes = pyplot.subplots(3, 2, figsize=(11, 9), layout="constrained")
    for axis, (scenario, name, title) in zip(axes.flat, PANELS, strict=True):
        panel(axis, bars(results, scenario, name), title)
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    pyplot.close(figure)


def panel(axis: Any, rows: list[tuple[str, float, float, float]], title: str) -> None:
    """One comparison."""
    axis.set_title(title, loc="left", fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    if not rows:
        axis.set_axis_off()
        return
    names, middle, *_ = zip(*rows, strict=True)
    below, above = zip(*((m - low, high - m) for _, m, low, high in rows), strict=True)
    colours = [OURS if name.startswith("magik_sa") else OTHERS for name in names]
    drawn = axis.barh(names, middle, xerr=[below, above], color=colours, error_kw={"elinewidth": 0.8})
    axis.bar_label(drawn, labels=list(map(number, middle)), padding=6, fontsize=8)
    axis.tick_params(labelsize=8)
    axis.margins(x=0.15)
