"""What the command line, the environment and pyproject say, in that order of weight.

Every option of the worker has three spellings: ``--poll-interval``, ``MAGIK_POLL_INTERVAL`` and
``poll-interval`` (or ``poll_interval``) under ``[tool.magik_sa]`` in the nearest pyproject.toml.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo

from .duration import advice, duration
from .errors import BootError, BootRefused, DeclarationError, MagikError
from .meant import meant, near

LISTS = ("modules", "queues")
SECRET = ("database_url", "locking_url")
LONGEST_IDENTIFIER = 63  # bytes


def schema() -> str | None:
    """The schema that holds the tables, or None where the search_path decides. Read once, at import of the tables."""
    name = os.environ.get("MAGIK_SCHEMA") or pyproject(Path.cwd()).get("schema")
    return _identifier(str(name)) if name else None


def _identifier(name: str) -> str:
    """Refuse a name that Postgres would cut: two schemas could be taken for one."""
    try:
        fits = len(name.encode()) <= LONGEST_IDENTIFIER and "\0" not in name
    except UnicodeEncodeError:
        fits = False
    if not fits:
        what = f"schema={name!r}: the name of a schema has 1 to {LONGEST_IDENTIFIER} bytes of UTF-8 and no NUL."
        raise BootError("MAGIK_SETTING_INVALID", what, field="schema")
    return name


def pyproject(folder: Path) -> Mapping[str, Any]:
    """The ``[tool.magik_sa]`` table of the nearest pyproject.toml at or above `folder`; empty without one."""
    return {key.replace("-", "_"): value for key, value in _nearest(folder)[1].items()}


@cache
def _nearest(folder: Path) -> tuple[Path, Mapping[str, Any]]:
    """That file, and its table as it is written there."""
    for place in (folder, *folder.parents):
        file = place / "pyproject.toml"
        if file.is_file():
            return file, _table(file)
    return folder / "pyproject.toml", {}


def _table(file: Path) -> Mapping[str, Any]:
    try:
        tools = tomllib.loads(file.read_text("utf-8")).get("tool")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BootError("MAGIK_SETTING_INVALID", f"{file} cannot be read: {error}.", field=str(file)) from error
    if not isinstance(tools, dict):
        return {}
    if "magik-sa" in tools:
        what = f"{file}: nobody reads [tool.magik-sa]; did you mean [tool.magik_sa]?"
        raise BootError("MAGIK_SETTING_INVALID", what, field=str(file))
    table = tools.get("magik_sa", {})
    if not isinstance(table, dict):
        raise BootError("MAGIK_SETTING_INVALID", f"{file}: tool.magik_sa is not a table.", field=str(file))
    return table


def _span(value: object) -> timedelta:
    try:
        return duration(value)
    except DeclarationError as error:
        raise ValueError(advice(error)) from error


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        raise ValueError("name at least one queue")
    return tuple(dict.fromkeys(names))


def _storable(name: str) -> str:
    try:
        data = name.encode("utf-8", "surrogateescape")  # of a command line in a locale without these characters
        name = data.decode()
    except UnicodeError:
        raise ValueError("a queue's name is text in UTF-8") from None
    if not 1 <= len(data) <= 255 or "\0" in name:
        raise ValueError("a queue's name has 1 to 255 bytes and no NUL")
    return name


def _bytes(name: str) -> bytes:
    """In UTF-8; none where a command line's bytes were no characters."""
    try:
        return name.encode()
    except UnicodeEncodeError:
        return b""


Span = Annotated[timedelta, BeforeValidator(_span)]
QueueName = Annotated[str, AfterValidator(_storable)]


def _of_maintenance(span: timedelta, told: ValidationInfo) -> timedelta:
    if not told.data.get("maintenance"):
        raise ValueError("it is a part of maintenance, which is off")
    return span


class Settings(BaseModel):
    """Everything a worker can be told. Durations are text at the surface ("5s"), `timedelta` inside."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    modules: tuple[str, ...] = ()
    database_url: Annotated[str | None, Field(repr=False)] = None
    locking_url: Annotated[str | None, Field(repr=False)] = None
    session: str | None = None
    queues: Annotated[tuple[QueueName, ...], AfterValidator(_distinct)] = ("default",)
    concurrency: Annotated[int, Field(ge=1, le=500)] = 10
    processes: Annotated[int, Field(ge=1, le=100)] = 1
    poll_interval: Span = timedelta(seconds=5)
    shutdown_timeout: Span = timedelta(seconds=25)
    database_timeout: Span = timedelta(minutes=5)
    maintenance: bool = False
    end_idle_transactions: Annotated[Span, AfterValidator(_of_maintenance)] | None = None
    log_format: Literal["text", "json"] | None = None  # as the application's logging has it; text where it has none
    health_port: Annotated[int | None, Field(ge=0, le=65535)] = None  # 0: any that is free
    health_host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    app_name: Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[\x20-\x7e]+$")] = "magik_sa"


def read(given: Mapping[str, Any], environ: Mapping[str, str] | None = None, folder: Path | None = None) -> Settings:
    """Merge what was given over the environment over pyproject, and check all of it.

    Raises `BootRefused` with one ``MAGIK_SETTING_INVALID`` for each option at fault.
    """
    folder = folder or Path.cwd()
    written = {key: value for key, value in pyproject(folder).items() if key != "schema"}
    said = {key: value for key, value in given.items() if value is not None}
    misspelt = list(_misspelt(os.environ if environ is None else environ))
    if misspelt:
        raise BootRefused(misspelt)
    merged = {**written, **_from_environment(os.environ if environ is None else environ), **said}
    try:
        return Settings(**{key: _listed(key, value) for key, value in merged.items()})
    except ValidationError as error:
        strange = {key.replace("-", "_"): key for key in _nearest(folder)[1]}
        raise BootRefused([_finding(fault, strange, _nearest(folder)[0]) for fault in error.errors()]) from None


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    names = {name: f"MAGIK_{name.upper()}" for name in Settings.model_fields}
    return {name: environ[key] for name, key in names.items() if environ.get(key)}


def _misspelt(environ: Mapping[str, str]) -> Iterator[MagikError]:
    """Variables that look like one of ours and are none: MAGIK_QUEUE would leave the worker on the wrong queue."""
    ours = {f"MAGIK_{name.upper()}" for name in Settings.model_fields} | {"MAGIK_SCHEMA", "MAGIK_MAX_ARGS_BYTES"}
    for name in sorted(name for name in environ if name.startswith("MAGIK_") and name not in ours):
        for likely in meant(name, ours, 1, 0.9):
            yield BootError(
                "MAGIK_SETTING_INVALID", f"{name} is no variable of ours: did you mean {likely}?", field=name
            )


def _listed(key: str, value: Any) -> Any:
    """Lists are written "a,b" in the environment and as real lists elsewhere."""
    if key in LISTS and isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return tuple(value) if isinstance(value, list) else value


def _finding(fault: Any, written: Mapping[str, str], file: Path) -> MagikError:
    """One fault; `written` are the keys of the file, as they are written there."""
    name = str(fault["loc"][0]) if fault["loc"] else "settings"
    if fault["type"] == "extra_forbidden":
        return _no_key(name, written[name], file) if name in written else _no_option(name)
    why = fault["msg"].removeprefix("Value error, ")
    shown = "" if name in SECRET else f"={fault['input']!r}"
    return BootError("MAGIK_SETTING_INVALID", f"{_dashed(name)}{shown}: {why}.", field=name)


def _no_key(name: str, key: str, file: Path) -> MagikError:
    """What is written there stays untold: under a misspelt database-url there may be a password."""
    hint = near(_dashed(name), map(_dashed, (*Settings.model_fields, "schema")))
    what = f"{file}: [tool.magik_sa] has a key {key!r} that is none of ours{hint}"
    return BootError("MAGIK_SETTING_INVALID", what, field=name, remedy="Correct it; docs/worker.md has all of them.")


def _no_option(name: str) -> MagikError:
    hint = near(_dashed(name), map(_dashed, Settings.model_fields))
    return BootError("MAGIK_SETTING_INVALID", f"{_dashed(name)}: there is no such option{hint}", field=name)


def _dashed(name: str) -> str:
    return name.replace("_", "-")
