"""docs/options.md lists every option that a job class can declare, with its true default and what bad values get."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy.orm import Mapped, mapped_column

from magik_sa import Job, MagikError, Retries, Schedule, arg, boot
from magik_sa.args import MISSING
from magik_sa.body import BODY, HEADER
from magik_sa.declaration import Declaration
from magik_sa.errors import BootError, DeclarationError, EnqueueError
from magik_sa.job import _declared, declared

PAGE = (Path(__file__).parents[2] / "docs" / "options.md").read_text()
SECTIONS = {"header": "In the header", "body": "In the body", "retries": "Retries", "arg": "Arguments"}
SECTIONS |= {"schedule": "Schedules", "job": "For one job"}
COMING = "(not in this release)"
MOMENTS: dict[type[MagikError], str] = {DeclarationError: "class", BootError: "boot", EnqueueError: "job"}

Place = tuple[str, str]  # the part of the page, and the option
Row = list[str]  # option, type, default, what it does, codes, moments


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0].split("\n### ")[0]


def rows() -> dict[Place, Row]:
    """The rows of the page's tables of options."""
    found: dict[Place, Row] = {}
    for part, title in SECTIONS.items():
        for line in re.findall(r"^\| `\w+`.*$", section(title), re.MULTILINE):
            row = [cell.strip() for cell in line.strip("|").split("|")]
            found[part, row[0].strip("`")] = row
    return found


def defaults() -> dict[Place, Any]:
    """Every option of the code, and its default."""
    declared = {field.name: field for field in dataclasses.fields(Declaration)}
    fields = {field.name: field.default for field in dataclasses.fields(Retries)}
    factories = {name: field.default_factory for name, field in declared.items()}
    said = {
        name: field.default if factories[name] is dataclasses.MISSING else factories[name]()  # type: ignore[operator]
        for name, field in declared.items()
    }
    return {
        **{("header", name): said[name] for name in HEADER},
        **{("body", name): said["schedules" if name == "schedule" else name] for name in BODY},
        **{("retries", name): default for name, default in fields.items()},
        **{("schedule", name): default for name, default in schedule_fields()},
        **{("arg", name): default for name, default in keywords(arg)},
        **{("job", name): default for name, default in keywords(Job.__init__)},
    }


def schedule_fields() -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(Schedule):
        if field.init:
            yield field.name, {} if field.name == "args" else field.default


def keywords(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            yield name, parameter.default


def shown(default: Any) -> str:
    """A default as the page writes it."""
    if default is dataclasses.MISSING:
        return "the class's name"  # the only option that every class has a value of its own for
    if default is None or default in ((), {}) or default is MISSING:
        return "none"
    text = "Retries()" if default == Retries() else repr(default).replace("'", '"')
    return f"`{text}`"


def test_every_option_of_the_code_is_on_the_page_with_its_true_default() -> None:
    page = {place: row[2] for place, row in rows().items() if row[3] != COMING}
    assert page == {place: shown(default) for place, default in defaults().items()}


# ---- what bad values get


class Fine(Job, policy="system", queue="fine", priority=9):
    number: Mapped[int] = arg(default=1)
    fresh: Mapped[int] = arg(default_factory=lambda: "many")  # type: ignore[arg-type,return-value]

    def perform(self, session: Any) -> None: ...


def made(header: dict[str, Any] | None = None, **body: Any) -> type[Job]:
    """A job class with one argument, `number`."""
    annotations = {"number": Mapped[int], **body.pop("annotations", {})}
    body = {"__module__": __name__, "__annotations__": annotations, "perform": Fine.perform, **body}
    return types.new_class("Made", (Job,), {"policy": "system", **(header or {})}, lambda space: space.update(body))


def at_boot(policy: str | None) -> None:
    """What a worker's boot says of a class with this policy."""
    made({"policy": policy})
    raise next(error for error in boot.check_jobs() if error.field == "Made")


def clashing(name: str) -> None:
    """What a worker's boot says of a schedule of this name, where a class has the name that its row would have."""
    header = {"policy": "system", "name": f"Made:{name}"}
    args = {"number": 1}
    other = made(header, schedule=Schedule(every="1h", args=args))
    mine = made(schedule=Schedule(every="1h", name=name, args=args))
    _declared.pop(f"Made:{name}")
    raise next(boot.check_schedules({f"Made:{name}": other, "Made": mine}))


def with_default(value: Any) -> None:
    made(annotations={"given": Mapped[int]}, given=arg(default=value))


Make = Callable[[Any], object]
untyped: Any = arg
SCHEDULED: dict[str, dict[str, Any]] = {"every": {}, "cron": {"zone": "UTC"}, "zone": {"cron": "* * * * *"}}
SCHEDULED |= {"name": {"every": "1h"}, "args": {"every": "1h"}}
MAKE: dict[str, Callable[[str], Make]] = {
    "header": lambda option: lambda value: made({option: value}),
    "body": lambda option: lambda value: made(**{option: value}),
    "retries": lambda field: lambda value: Retries(**{field: value}),
    "schedule": lambda field: lambda value: Schedule(**{**SCHEDULED[field], field: value}),
    "arg": lambda parameter: lambda value: untyped(**{parameter: value}),
    "job": lambda keyword: lambda value: Fine(fresh=1, **{keyword: value}),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One value for one option, and the code that it has to get."""

    place: Place
    code: str
    value: Any
    make: Make
    field: str

    def __str__(self) -> str:
        return f"{'.'.join(self.place)}-{self.code}"


def bad(part: str, option: str, code: str, *values: Any, make: Make | None = None, field: str = "") -> list[Case]:
    """These values for this option get this code, and are named as `field`, the option by default."""
    return [Case((part, option), code, value, make or MAKE[part](option), field or option) for value in values]


NAIVE = datetime.fromisoformat("2026-01-01T00:00")
AWARE = datetime.fromisoformat("2026-01-01T00:00Z")
OWN_TABLE: dict[str, Any] = {"__tablename__": "made", "annotations": {"total": Mapped[int]}, "total": mapped_column()}
CASES = [
    *bad("header", "policy", "MAGIK_OPTION_INVALID", "", 3, "é" * 128),
    *bad("header", "policy", "MAGIK_POLICY_UNDECLARED", None, make=at_boot, field="Made"),
    *bad("header", "policy", "MAGIK_POLICY_UNKNOWN", "nobody_defines_this", make=at_boot, field="Made"),
    *bad("header", "queue", "MAGIK_OPTION_INVALID", "", 3, "a\0", "\ud800", "q" * 256),
    *bad("header", "priority", "MAGIK_OPTION_INVALID", "high", True, 1.5, 2**15, -(2**15) - 1),
    *bad("header", "name", "MAGIK_OPTION_INVALID", "", 3, "x" * 256),
    *bad("header", "name", "MAGIK_NAME_TAKEN", "Fine"),
    *bad("body", "retries", "MAGIK_OPTION_INVALID", 5, None, {"times": 3}, Retries),
    *bad("body", "idempotent_by", "MAGIK_OPTION_INVALID", 3, ["number"], ("number", "number"), None),
    *bad("body", "idempotent_by", "MAGIK_IDEMPOTENT_BY_UNKNOWN", "tenant", ("number", "tenant")),
    *bad(
        "body",
        "idempotent_by",
        "MAGIK_IDEMPOTENT_BY_UNSUPPORTED",
        "number",
        make=lambda value: made(idempotent_by=value, **OWN_TABLE),
    ),
    *bad("body", "discard_on", "MAGIK_OPTION_INVALID", "shop.errors.Gone", KeyError(), (KeyError, "Gone"), int, None),
    *bad("body", "keep", "MAGIK_DURATION_INVALID", 7, "7", "7 days", "0s", "-1d", "4000d", timedelta(0), True),
    *bad("body", "money", "MAGIK_OPTION_INVALID", 1, "yes", None),
    *bad("body", "money", "MAGIK_IDEMPOTENT_BY_REQUIRED", True, field="idempotent_by"),
    *bad("retries", "times", "MAGIK_RETRIES_INVALID", -1, 2.0, True, "5", None, 10**6 + 1),
    *bad("retries", "backoff", "MAGIK_RETRIES_INVALID", "quadratic", None, 2),
    *bad("retries", "base", "MAGIK_RETRIES_INVALID", 5, "5", "0s", "1m1h", None),
    *bad("retries", "cap", "MAGIK_RETRIES_INVALID", 3600, "soon", "1s", None),
    *bad("retries", "jitter", "MAGIK_RETRIES_INVALID", -0.1, 1.5, float("nan"), "0.1", True, None),
    *bad("retries", "timeout", "MAGIK_RETRIES_INVALID", 30, "soon", "0s", "-1s"),
    *bad("body", "schedule", "MAGIK_OPTION_INVALID", "1h", 5, [Schedule(every="1h")], {"every": "1h"}, Schedule),
    *bad("schedule", "every", "MAGIK_SCHEDULE_INVALID", None),
    *bad("schedule", "every", "MAGIK_DURATION_INVALID", 5, "5", "100ms", "1.5s", "0s", "-1h", "4000d", timedelta(0)),
    *bad("schedule", "cron", "MAGIK_SCHEDULE_CRON_INVALID", "", 5, "* * * *", "*/90 * * * *", "@reboot"),
    *bad("schedule", "cron", "MAGIK_SCHEDULE_NEVER", "0 0 30 2 *"),
    *bad("schedule", "zone", "MAGIK_SCHEDULE_ZONE_MISSING", None, ""),
    *bad("schedule", "zone", "MAGIK_SCHEDULE_ZONE_UNKNOWN", "utc", "+02:00", 5),
    *bad("schedule", "zone", "MAGIK_SCHEDULE_INVALID", "UTC", make=lambda zone: Schedule(every="1h", zone=zone)),
    *bad("schedule", "name", "MAGIK_SCHEDULE_INVALID", "", 5, "a\0", "x" * 256),
    *bad(
        "schedule",
        "name",
        "MAGIK_OPTION_INVALID",
        None,
        "same",
        make=lambda name: made(schedule=tuple(Schedule(every=every, name=name) for every in ("1h", "2h"))),
        field="schedule",
    ),
    *bad("schedule", "name", "MAGIK_SCHEDULE_NAME_TAKEN", "eu", make=clashing),
    *bad("schedule", "args", "MAGIK_SCHEDULE_INVALID", None, ["number"], {5: 1}),
    *bad(
        "schedule",
        "args",
        "MAGIK_SCHEDULE_ARGS_INVALID",
        {"nummer": 1},
        {"number": "many"},
        {},
        make=lambda args: made(schedule=Schedule(every="1h", args=args)),
        field="schedule",
    ),
    *bad("arg", "default", "MAGIK_ARG_DECLARATION", "many", None, make=with_default, field="given"),
    *bad("arg", "default_factory", "MAGIK_ARG_DECLARATION", 3, [], "int"),
    *bad(
        "arg",
        "default_factory",
        "MAGIK_ARG_DECLARATION",
        int,
        make=lambda make: untyped(default=1, default_factory=make),
    ),
    *bad("arg", "default_factory", "MAGIK_ARGS_INVALID", 1, make=lambda one: Fine(number=one), field="fresh"),
    *bad("arg", "sensitive", "MAGIK_ARG_DECLARATION", "no", 1, None),
    *bad("job", "run_at", "MAGIK_ARGS_INVALID", NAIVE, "2026-01-01", 5, datetime.max.replace(tzinfo=UTC)),
    *bad("job", "delay", "MAGIK_ARGS_INVALID", 5, "5", "-1s", "soon", timedelta(days=4000)),
    *bad("job", "delay", "MAGIK_ARGS_INVALID", "5s", make=lambda value: Fine(fresh=1, delay=value, run_at=AWARE)),
    *bad("job", "queue", "MAGIK_ARGS_INVALID", "", 3, "a\0", "q" * 256),
    *bad("job", "priority", "MAGIK_ARGS_INVALID", "high", True, 1.5, 2**15),
]


@pytest.fixture(autouse=True)
def _nothing_stays_declared() -> Iterator[None]:
    yield
    _declared.pop("Made", None)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_bad_value_gets_the_code_that_the_page_names_at_the_moment_that_it_names(case: Case) -> None:
    with pytest.raises(MagikError) as caught:
        case.make(case.value)
    error = caught.value
    assert (error.code, error.field) == (case.code, case.field)
    _, _, _, _, codes, moments = rows()[case.place]
    assert f"`{error.code}`" in codes
    assert MOMENTS[type(error)] in moments.split("; ")
    assert isinstance(error, BootError) or "Made" not in declared()
    assert len(re.findall(rf"\b{case.field}(?:\b=|: )", error.what)) <= 1, "it is named once"


def test_every_option_is_tried_with_bad_values_and_every_code_of_the_page_is_met() -> None:
    page = {
        (place, code)
        for place, row in rows().items()
        if row[3] != COMING
        for code in re.findall("MAGIK_[A-Z_]+", row[4])
    }
    assert page == {(case.place, case.code) for case in CASES}


def test_without_keywords_a_job_is_as_its_class_says() -> None:
    job = Fine(fresh=1)
    assert (job.queue, job.priority, job.number) == ("fine", 9, 1)


# ---- the table of waits


def test_the_published_waits_are_those_of_the_code() -> None:
    head, _, *lines = re.findall(r"^\|.*\|$", PAGE.split("### How long a job waits")[1].split("\n## ")[0], re.MULTILINE)
    tries = [int(cell.split()[0]) for cell in head.strip("|").split("|")[1:]]
    for line in lines:
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        retries = Retries(backoff=cast(Any, name), jitter=0)
        waits = [int(cell.replace(",", "")) for cell in cells]
        assert waits == [retries.delay(number).total_seconds() for number in tries], name
        assert waits[-1] == retries.delay(30_000).total_seconds()
    assert len(lines) == 3


@pytest.mark.parametrize("number", [1, 5, 11, 30_000])
def test_chance_takes_off_at_most_the_published_share(number: int) -> None:
    ceiling = Retries(jitter=0).delay(number)
    waits = [Retries().delay(number) for _ in range(2_000)]
    assert ceiling * 0.9 <= min(waits) < ceiling * 0.91
    assert ceiling * 0.99 < max(waits) <= ceiling
