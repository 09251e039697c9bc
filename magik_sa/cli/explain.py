"""``magik explain CODE``: what an error means, where the documentation is not at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from ..errors import REMEDIES, BootError
from ..meant import MOST, meant
from .output import Answer, Command

PACKAGE: Final = Path(__file__).resolve().parents[1]
PAGES: Final = (PACKAGE / "errors.md", PACKAGE.parent / "docs" / "errors.md")  # in a wheel, and in a checkout
PREFIX: Final = "MAGIK_"
ENDS: Final = ('<a id="', "## ")  # what stands between two sections


@click.command("explain", cls=Command)
@click.argument("code")
def command(code: str) -> Answer:
    """What an error's CODE means, and what mends it."""
    name = code.upper().rstrip(":")
    name = name if name.startswith(PREFIX) else f"{PREFIX}{name}"
    if name not in REMEDIES:
        what = f"{code!r} is no code of an error{_near(name)}"
        raise BootError("MAGIK_SETTING_INVALID", what, field="code", remedy="Write it as the message has it.")
    told = section(page(), name)
    return Answer(f"{name}: {REMEDIES[name]}\n\n{told}", {"code": name, "remedy": REMEDIES[name], "section": told})


def _near(name: str) -> str:
    """Those that look like it, by what is not the same in all of them; or else a few that have its words."""
    word, codes = name.removeprefix(PREFIX), [code.removeprefix(PREFIX) for code in REMEDIES]
    found = meant(word, codes) or [code for code in codes if {*word.split("_")} <= {*code.split("_")}][:MOST]
    return f"; did you mean {' or '.join(repr(PREFIX + code) for code in found)}?" if found else "."


def page() -> str:
    """The page of all errors."""
    return next(path for path in PAGES if path.exists()).read_text(encoding="utf-8")


def section(text: str, code: str) -> str:
    """What it says of one code."""
    _, _, after = text.partition(f"\n## {code}\n")
    kept: list[str] = []
    for line in after.splitlines():
        if line.startswith(ENDS):
            break
        kept.append(line)
    return "\n".join(kept).strip()
