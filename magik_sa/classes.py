"""What happens while a job class is made: its body is read, its arguments become attributes, its name is registered."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from inspect import getattr_static, signature
from typing import Any, Final, NamedTuple

from sqlalchemy import Column
from sqlalchemy.exc import SAWarning
from sqlalchemy.orm import MappedColumn, registry

from .args import Argument, arguments_in, unmapped_in, without_mapped
from .attribute import ArgumentAttribute
from .body import BODY, ELSEWHERE, LATER, METHODS, options_in
from .calling import method, misfit, takes_not
from .declaration import Declaration
from .errors import DeclarationError
from .source import check_source

CALLED: Final = {"perform": ("session",), "on_failure": ("session", "error")}  # and what they are called with


class Own(NamedTuple):
    """What one class says itself: the options in its body and header, and its arguments."""

    said: Mapping[str, Any]
    arguments: Mapping[str, Argument]


def declare(cls: Any, job: Any, header: Mapping[str, Any]) -> None:
    """Read what `cls` declares into ``cls.__magik__``, and put its arguments where SQLAlchemy will not map them."""
    _refuse_second_base(cls, job)
    reserved = {*dir(job), *BODY, *METHODS, *LATER, *ELSEWHERE, "delay", "self"}
    own_table = _has_table_of_its_own(cls, job)
    layers = [_own(base, header if base is cls else {}, reserved, bare=not own_table) for base in _said_by(cls, job)]
    cls.__magik_own__ = layers[-1]
    said = {option: value for layer in layers for option, value in layer.said.items()}
    arguments = {name: argument for layer in layers for name, argument in layer.arguments.items()}
    cls.__magik__ = Declaration.of(cls.__name__, said, arguments)
    _install(cls, arguments)
    if not _is_abstract(cls):
        _check(cls, job, own_table)
        cls.__mapper_args__ = {**_mapper_args(cls), "polymorphic_identity": cls.__magik__.name}


def _said_by(cls: Any, job: Any) -> list[Any]:
    """The classes that speak for `cls`, the last word last: the parents below Job, the mixins, the class itself."""
    return [base for base in reversed(cls.__mro__) if not issubclass(job, base)]


def _refuse_second_base(cls: Any, job: Any) -> None:
    """A class is mapped once, in one registry: that of the jobs, or the application's."""
    for base in cls.__mro__[1:]:
        if not issubclass(base, job) and not issubclass(job, base) and isinstance(_registry(base), registry):
            what = f"{cls.__qualname__} derives from Job and from {base.__qualname__}: a Job has a registry of its own."
            remedy = "Derive it from Job, and not also from your declarative base or a class that this maps."
            raise DeclarationError("MAGIK_NAME_RESERVED", what, field="registry", remedy=remedy)


def _registry(base: type) -> object:
    return getattr(base, "registry", None) or getattr(base, "_sa_registry", None)


def _own(cls: Any, header: Mapping[str, Any], reserved: set[str], *, bare: bool) -> Own:
    if "__magik_own__" in vars(cls):
        own: Own = vars(cls)["__magik_own__"]
        return Own({option: value for option, value in own.said.items() if option != "name"}, own.arguments)
    said = options_in(cls, {word: value for word, value in header.items() if value is not None}, reserved)
    arguments = {argument.name: argument for argument in arguments_in(cls, bare=bare)}
    _refuse_reserved(cls, arguments, reserved)
    return Own(said, arguments)


@contextmanager
def adopt(cls: Any, job: Any, declared: dict[str, Any]) -> Iterator[None]:
    """Around the mapping of `cls`: give it its stored name, which one class at a time can have.

    A class of the same module and qualified name is the same class made again, by a reload or in a notebook: the new
    one takes its place.
    """
    if _is_abstract(cls):
        yield
        return
    name, known = cls.__magik__.name, job.__mapper__.polymorphic_map
    older = declared.get(name)
    if older is not None and _place(older) != _place(cls):
        what = f"{name!r} is the stored name of {'.'.join(_place(older))} and of {'.'.join(_place(cls))}."
        raise DeclarationError("MAGIK_NAME_TAKEN", what, field="name")
    mapper = known.pop(name, None)
    try:
        with warnings.catch_warnings():  # of a lookup by bare class name, which nothing here uses
            warnings.filterwarnings("ignore", "This declarative base already contains a class", SAWarning)
            yield
    except BaseException:
        if mapper is not None:
            known[name] = mapper
        raise
    declared[name] = cls


def _install(cls: Any, arguments: Mapping[str, Argument]) -> None:
    """Attributes for the arguments. Their annotations go: SQLAlchemy would make columns of them."""
    for name, argument in arguments.items():
        present = getattr_static(cls, name, None)
        if not isinstance(present, ArgumentAttribute) or present.argument is not argument:
            setattr(cls, name, ArgumentAttribute(argument))
    if "__annotations__" in vars(cls):
        cls.__annotations__ = {name: hint for name, hint in cls.__annotations__.items() if name not in arguments}


def _refuse_reserved(cls: Any, arguments: Mapping[str, Argument], reserved: set[str]) -> None:
    for name in arguments:
        if name in reserved or name.startswith("_"):
            what = f"{cls.__qualname__}.{name} cannot be the name of an argument."
            raise DeclarationError("MAGIK_NAME_RESERVED", what, field=name)


def _check(cls: Any, job: Any, own_table: bool) -> None:
    _check_methods(cls, job)
    declaration = cls.__magik__ = replace(cls.__magik__, alone=_performs_alone(cls))
    if own_table and declaration.idempotent_by is not None:
        what = f"{cls.__qualname__} has a table of its own and idempotent_by."
        raise DeclarationError("MAGIK_IDEMPOTENT_BY_UNSUPPORTED", what, field="idempotent_by")
    columns = [name for name, value in vars(cls).items() if isinstance(value, Column | MappedColumn)]
    if columns and not own_table:
        what = f"{cls.__qualname__}.{columns[0]} is a column, and the class has no table of its own."
        raise DeclarationError("MAGIK_COLUMN_WITHOUT_TABLE", what, field=columns[0])
    _refuse_unmapped(cls)
    declaration.check()
    check_source(cls, job)


def _refuse_unmapped(cls: Any) -> None:
    """Tell of an argument that lacks its Mapped. A private name is none, and its annotation means nothing here."""
    if getattr(cls, "__allow_unmapped__", False):
        return
    names = [*unmapped_in(cls)]
    for name in names:
        if not name.startswith("_"):
            raise without_mapped(cls, name)
    if names:
        cls.__annotations__ = {name: hint for name, hint in cls.__annotations__.items() if name not in names}


def _check_methods(cls: Any, job: Any) -> None:
    """Refuse a class whose methods, called as they will be, would not do their work."""
    if cls.perform is job.perform:
        what = f"{cls.__qualname__} has no perform."
        remedy = "Write `def perform(self, session)`; a class that is only a parent says __abstract__ = True."
        raise DeclarationError("MAGIK_OPTION_INVALID", what, field="perform", remedy=remedy)
    for name, given in CALLED.items():
        if name == "perform" and _performs_alone(cls):
            given = ()
        if fault := misfit(method(cls, name), *given):
            remedy = f"Write a plain `def {name}({', '.join(['self', *given])})`."
            what = f"{cls.__qualname__}.{name} {fault}."
            raise DeclarationError("MAGIK_OPTION_INVALID", what, field=name, remedy=remedy)
        _refuse_arguments(cls, name, given)


def _refuse_arguments(cls: Any, name: str, given: tuple[str, ...]) -> None:
    """An argument of the job is an attribute of it; a parameter of that name would be given something else."""
    try:
        parameters = list(signature(method(cls, name)).parameters)[: len(given)]
    except ValueError:  # of a function in C
        return
    for parameter, passed in zip(parameters, given, strict=False):
        if parameter != passed and parameter in cls.__magik__.arguments:
            taken = f"{cls.__qualname__}.{name} takes {parameter}"
            what = f"{taken}, which is an argument of the job, and would get the {passed}."
            remedy = f"Write `def {name}({', '.join(['self', *given])})`, and self.{parameter} in it."
            raise DeclarationError("MAGIK_OPTION_INVALID", what, field=name, remedy=remedy)


def _performs_alone(cls: Any) -> bool:
    """Whether its perform takes no Session."""
    perform = method(cls, "perform")
    return takes_not(perform, *CALLED["perform"]) is not None and takes_not(perform) is None


def _has_table_of_its_own(cls: Any, job: Any) -> bool:
    """Whether SQLAlchemy will find a ``__tablename__`` for `cls`, or a parent of it has a table beside the jobs'."""
    unmapped = [base for base in cls.__mro__ if "__mapper__" not in vars(base)]
    if any(name in vars(base) for base in unmapped for name in ("__tablename__", "__table__")):
        return True
    return next(base for base in cls.__mro__ if "__mapper__" in vars(base)).__table__ is not job.__table__


def _is_abstract(cls: Any) -> bool:
    return bool(vars(cls).get("__abstract__"))


def _mapper_args(cls: Any) -> dict[str, Any]:
    return dict(vars(cls).get("__mapper_args__", {}))


def _place(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__
