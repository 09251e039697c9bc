"""One direction of imports: the package reads from top to bottom, and nothing reaches up."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "magik_sa"

# The house, from the ground up. A module imports what stands on a line above its own, or left of it on the same
# line. A package's own name (``worker``) is its __init__. Whoever adds a module gives it its place here.
LAYOUT = """
errors duration settings uuid7 storable failure logs forked url calling readable interrupts commits
retries zone clock cron walk schedule verb around carried args
kind sealed key expression attribute columns declaration source body classes display table
job
names rows statement server
unknown setting writing committed enqueue wake claim timeout
lent outcome fence successor unnest bulk routing job_session ending run timetable recurring effects
migrations.place migrations.locked migrations.parts migrations.drift migrations.v001 migrations migrations.autogenerate
alembic_plugin
sessions database boot asking status.figures status.questions status acting
doctor.finding doctor.vacuum doctor.room doctor.tables doctor.timeouts doctor.way doctor
testing.target testing.clock testing.found testing.performing testing.stage testing.due testing.draining
testing.fixtures testing pytest_plugin
worker.signals worker.mailbox worker.letters worker.book worker.idle worker.line worker.locker worker.performer
worker.completer worker.rest worker.scheduler worker.watchdog worker.worker worker worker.process worker.__main__
cli.output cli.late cli.tables cli.connect cli.status cli.jobs cli.queues cli.schedules cli.doctor cli.check cli.migrate
cli.prune cli.commands cli cli.__main__
"""
ORDER = {name: place for place, name in enumerate(LAYOUT.split())}
LAZY = PACKAGE / "__init__.py"  # the public names, loaded when they are asked for: it stands outside the order


def modules() -> list[Path]:
    """Every module of the package but the lazy one."""
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path != LAZY]


def dotted(path: Path) -> str:
    """The name of a module below the package: ``worker/book.py`` is ``worker.book``."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def runtime(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those below ``if TYPE_CHECKING:``; imports inside functions count."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from runtime(node)


def imported(path: Path, tree: ast.AST) -> Iterator[str]:
    """The package's own modules that a module imports when it runs, by their dotted names."""
    package = list(path.relative_to(PACKAGE).parent.parts)
    for node in runtime(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            above = package[: len(package) - node.level + 1] if node.level <= len(package) + 1 else []
            base = above + (node.module.split(".") if node.module else [])
            for alias in node.names:
                inner = ".".join([*base, alias.name])
                yield inner if exists(inner) else ".".join(base)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "magik_sa":
            yield f"magik_sa: {ast.unparse(node)}"
        elif isinstance(node, ast.Import):
            yield from (f"magik_sa: {ast.unparse(node)}" for a in node.names if a.name.split(".")[0] == "magik_sa")


def exists(name: str) -> bool:
    """Whether there is such a module in the package."""
    place = PACKAGE.joinpath(*name.split("."))
    return place.with_suffix(".py").exists() or (place / "__init__.py").exists()


def faults(path: Path, source: str) -> list[str]:
    """What this module imports against the direction."""
    name = dotted(path)
    if name not in ORDER:
        return [f"{name} has no place in LAYOUT"]
    wrong = [target for target in imported(path, ast.parse(source)) if ORDER.get(target, len(ORDER)) >= ORDER[name]]
    return [f"{name} imports {target}" for target in wrong]


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_a_module_imports_only_what_stands_before_it(path: Path) -> None:
    assert faults(path, path.read_text()) == []


@pytest.mark.parametrize(
    ("module", "source", "wrong"),
    [
        ("claim.py", "from .names import Names", []),
        ("claim.py", "from . import names, errors", []),
        ("claim.py", "from .run import run", ["claim imports run"]),
        ("claim.py", "from . import run", ["claim imports run"]),
        ("claim.py", "def late():\n    from .run import run", ["claim imports run"]),
        ("claim.py", "if TYPE_CHECKING:\n    from .run import run", []),
        ("claim.py", "from magik_sa.names import Names", ["claim imports magik_sa: from magik_sa.names import Names"]),
        ("claim.py", "import magik_sa", ["claim imports magik_sa: import magik_sa"]),
        ("claim.py", "import psycopg", []),
        ("worker/book.py", "from ..claim import Claimed", []),
        ("worker/book.py", "from .mailbox import Mailbox", []),
        ("worker/book.py", "from .locker import Locker", ["worker.book imports worker.locker"]),
        ("worker/book.py", "from .. import wake", []),
        ("run.py", "from .worker.book import Book", ["run imports worker.book"]),
        ("nowhere.py", "", ["nowhere has no place in LAYOUT"]),
    ],
)
def test_the_rule_is_enforced(module: str, source: str, wrong: list[str]) -> None:
    assert faults(PACKAGE / module, source) == wrong


def test_the_package_itself_imports_nothing_of_its_own_before_it_is_asked() -> None:
    assert list(imported(LAZY, ast.parse(LAZY.read_text()))) == []


def test_no_module_is_named_after_nothing() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "base", "manager", "service", "misc"}
    assert not vague & {part for path in modules() for part in dotted(path).split(".")}
