"""One direction of imports: the package reads from top to bottom, and nothing reaches up."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from magik_sa.cli import jobs
from magik_sa.cli.commands import COMMANDS, magik

PACKAGE = Path(__file__).resolve().parents[2] / "magik_sa"

# The house, from the ground up. A module imports what stands on a line above its own, or left of it on the same
# line. A package's own name (``worker``) is its __init__. Whoever adds a module gives it its place here.
LAYOUT = """
harmless meant briefly errors named duration settings uuid7 ids storable failure logs forked url unreached calling
readable peep interrupts commits unreadable retries zone clock cron walk schedule verb around carried
roundtrip args
kind sealed key expression attribute columns declaration source body classes display table version
job
names priorities rows statement server grants
absent unknown setting writing committed enqueue wake
completing claim.claimed claim.marks claim.walk claim.reread claim.notes claim.locks claim.unserved claim
timeout
lent outcome fence successor unnest chunk alike bulk routing unused one_exchange job_session recording ending run
timetable ticks tries recurring effects
home locked installed pausing
migrations.parts migrations.drift migrations.v001 migrations migrations.autogenerate
alembic_plugin
scale.source scale.calls scale.loop scale.transaction scale.declared scale
sessions database boot asking status.figures status.questions status.at_work status
acting.states acting.filter acting.bounds acting.known acting.listed acting.batch acting.acts acting
pruning.statements pruning
doctor.finding doctor.vacuum doctor.room doctor.tables doctor.timeouts doctor.way doctor.horizon doctor.cleaning
doctor.shared doctor.left doctor.window doctor.outgrown doctor.probe doctor
testing.target testing.clock testing.found testing.performing testing.stage testing.due testing.draining
testing.fixtures testing pytest_plugin
worker.signals worker.mailbox worker.letters worker.pace worker.gate worker.lanes worker.tray worker.suspects
worker.book worker.stock
worker.ear worker.idle worker.tally worker.line worker.completer worker.chores worker.unserved worker.locker
worker.health worker.condition
worker.performer worker.rest worker.scheduler worker.duties worker.maintenance
worker.watchdog worker.worker worker worker.ending worker.tie worker.process worker.child worker.seat
worker.supervisor worker.command worker.__main__
cli.output cli.watch cli.late cli.tables cli.connect cli.changing cli.status cli.jobs cli.queues
cli.chosen cli.unmet cli.listed cli.shown cli.acts
cli.schedules cli.workers cli.doctor cli.check cli.migrate cli.prune cli.explain cli.commands cli cli.__main__
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


@pytest.mark.parametrize("module", ["worker.process", "cli.status"])
def test_a_start_loads_nothing_that_only_a_migration_needs(module: str) -> None:
    loads = f"import sys, magik_sa.{module}; sys.exit('alembic' in sys.modules or 'mako' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", loads], cwd=PACKAGE.parent).returncode == 0


@pytest.mark.parametrize(
    ("modules", "not_loaded"),
    [
        ("command, supervisor, health", "sqlalchemy psycopg magik_sa.job magik_sa.boot"),
        ("command, process", "magik_sa.worker.supervisor magik_sa.worker.child magik_sa.worker.tie"),
    ],
    ids=["several processes", "one process"],
)
def test_a_supervisor_needs_no_database_and_one_process_no_supervisor(modules: str, not_loaded: str) -> None:
    ask = f"import sys; from magik_sa.worker import {modules}; print(*{{*sys.modules}} & {{*{not_loaded.split()}}})"
    done = subprocess.run([sys.executable, "-c", ask], cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


LEAN = {
    "": "sqlalchemy psycopg pydantic",
    "jobs": "sqlalchemy psycopg pydantic",
    "jobs status": "sqlalchemy.orm magik_sa.job alembic",
    "queues": "sqlalchemy.orm magik_sa.job alembic",
    "workers": "sqlalchemy.orm magik_sa.job alembic",
}


@pytest.mark.parametrize("command", LEAN)
def test_a_command_loads_no_more_than_it_needs(command: str) -> None:
    """What is typed and waited for: what lists commands needs no database, what looks at one no mapped class."""
    ask = (
        "import sys; from magik_sa.cli.commands import magik\n"
        f"try: magik.main({[*command.split(), '--help']})\n"
        f"except SystemExit: print(*{{*sys.modules}} & {{*{LEAN[command].split()}}}, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", ask], cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    assert done.stderr.split() == []
    assert "Usage:" in done.stdout


@pytest.mark.parametrize(("group", "commands"), [(magik, COMMANDS), (jobs.command, jobs.COMMANDS)])
def test_what_a_command_does_is_said_alike_where_it_is_listed_and_by_itself(
    group: click.Group, commands: dict[str, tuple[str, str]]
) -> None:
    with click.Context(group) as context:
        said = {name: group.get_command(context, name) for name in group.list_commands(context)}
    assert {name: each and each.get_short_help_str(200) for name, each in said.items()} == {
        name: what for name, (_, what) in commands.items()
    }


def test_no_module_is_named_after_nothing() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "base", "manager", "service", "misc"}
    assert not vague & {part for path in modules() for part in dotted(path).split(".")}
