"""The arguments of a job class: ``tenant_id: Mapped[UUID] = arg()``, checked by pydantic, kept as JSON.

An `Argument` knows one of them: how a value is checked, how it is written to JSON and read back, and what stands
in for it in a row that is older than the argument.
"""

from __future__ import annotations

import re
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from inspect import get_annotations
from typing import Any, ClassVar, Final, NamedTuple, TypeVar, get_args, get_origin, get_type_hints, overload

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError, to_json
from sqlalchemy.orm import Mapped
from sqlalchemy.orm.base import _MappedAnnotationBase as MappedBase

from .briefly import briefly
from .errors import DeclarationError
from .failure import cut
from .named import named
from .roundtrip import LARGEST_INTEGER, SMALLEST_INTEGER, itself, plain, same
from .storable import encoded, invalid

T = TypeVar("T")
MISSING: Final[Any] = object()
MOST_FAULTS: Final = 5  # of one value that its refusal names: a long list may have as many as it has elements
LONGEST_FAULT: Final = 500  # bytes; a validator of the application's may quote the value
_OF_TYPE = re.compile(r"_type$|_parsing$|^int_from_float$|^is_instance_of$")
_MAPPED = re.compile(r"(\w+\.)*Mapped\[")
_KNOWN = re.compile(r"Mapped\[|\bClassVar\b")


@dataclass(frozen=True, eq=False)
class Spec:
    """What `arg` leaves in the body of a class until the class is made."""

    default: Any = MISSING
    default_factory: Callable[[], Any] | None = None
    sensitive: bool = False


@overload
def arg(*, default: T, sensitive: bool = False) -> Mapped[T]: ...
@overload
def arg(*, default_factory: Callable[[], T], sensitive: bool = False) -> Mapped[T]: ...
@overload
def arg(*, sensitive: bool = False) -> Mapped[Any]: ...
@named
def arg(*, default: Any = MISSING, default_factory: Callable[[], Any] | None = None, sensitive: bool = False) -> Any:
    """Declare one argument in the body of a job class.

    `default` or `default_factory` makes it optional; older rows that lack it read the same. A `sensitive` argument
    is never shown by any command, log, repr or error.
    """
    if default is not MISSING and default_factory is not None:
        raise _misused("default_factory", "takes a default or a default_factory, not both")
    if not (default_factory is None or callable(default_factory)):
        raise _misused("default_factory", "takes a function without parameters as default_factory")
    if not isinstance(sensitive, bool):
        raise _misused("sensitive", "takes True or False as sensitive")
    return Spec(default, default_factory, sensitive)


def _misused(parameter: str, why: str) -> DeclarationError:
    return DeclarationError("MAGIK_ARG_DECLARATION", f"arg() {why}.", field=parameter)


class Taken(NamedTuple):
    """A value that was checked."""

    value: Any
    stored: Any  # as JSON
    coded: bytes  # that, as it travels


@dataclass(frozen=True, eq=False)
class Argument:
    """One argument of a job class. `annotation` is the T of its ``Mapped[T]``."""

    name: str
    annotation: Any
    adapter: TypeAdapter[Any]
    spec: Spec

    @property
    def sensitive(self) -> bool:
        """Whether its value must never be shown."""
        return self.spec.sensitive

    @property
    def required(self) -> bool:
        """Whether a job cannot be built without it."""
        return self.spec.default is MISSING and self.spec.default_factory is None

    def take(self, value: object) -> Taken:
        """Check a value; give it as the job will show it, and as JSON. Raises ``MAGIK_ARGS_INVALID``."""
        if type(value) is self._itself and (coded := plain(value)):
            return Taken(value, value, coded)
        checked = self._checked(self.adapter.validate_python, value)
        stored = self.dump(checked)
        coded = encoded(stored, self.name)
        if (back := self.read(stored)) != checked and not same(back, checked):
            raise invalid(self.name, "does not come back from JSON as the same value")
        return Taken(checked, stored, coded)

    def dump(self, value: object) -> Any:
        """A checked value as JSON. The elements of a set, which have no order of their own, are sorted."""
        try:
            stored = self.adapter.dump_python(value, mode="json", warnings="error")
        except (PydanticSerializationError, ValueError, TypeError, RecursionError):
            stored = MISSING
        if stored is MISSING:
            raise invalid(self.name, "cannot be written as JSON")
        return sorted(stored, key=to_json) if isinstance(value, set | frozenset) else stored

    def read(self, stored: object) -> Any:
        """A value from its JSON. Raises ``MAGIK_ARGS_INVALID`` where it does not fit the declaration (any more)."""
        if type(stored) is self._itself and plain(stored):
            return stored
        return self._checked(lambda json: self.adapter.validate_json(to_json(json, inf_nan_mode="constants")), stored)

    def default(self) -> Any:
        """A fresh value for a row, or a caller, that has none. Raises ``MAGIK_ARGS_INVALID`` if it is required."""
        if self.spec.default_factory is not None:
            return self.take(self.spec.default_factory()).value
        if self.required:
            raise invalid(self.name, "is missing")
        return self.read(self._stored_default)

    @cached_property
    def head(self) -> bytes:
        """What stands before its value in the JSON of a row."""
        return encoded(self.name, self.name) + b":"

    @cached_property
    def _itself(self) -> type | None:
        return itself(self.annotation)

    @cached_property
    def _stored_default(self) -> Any:
        return self.take(self.spec.default).stored

    def _checked(self, validate: Callable[[Any], Any], value: object) -> Any:
        try:
            checked = validate(value)
            self._refuse_what_sql_cannot_compare(checked)
            return checked
        except ValidationError as error:
            faults = error.errors(include_url=False, include_context=False, include_input=False)
        except (RecursionError, PydanticSerializationError):
            faults = []
        # Raised out here, so that pydantic's own error, which quotes the value, is not even its context.
        more = [f"and {len(faults) - MOST_FAULTS:,} more"] if len(faults) > MOST_FAULTS else []
        told = [*map(self._told, faults[:MOST_FAULTS]), *more]
        raise invalid(self.name, self._wanted(faults) + "; ".join(told) or "is nested too deeply")

    def _wanted(self, faults: Sequence[Any]) -> str:
        """The type, where that is what does not fit: pydantic calls an int "a valid integer", and names no other."""
        kinds = (str(fault["type"]) for fault in faults)
        name = None if self.sensitive or not any(map(_OF_TYPE.search, kinds)) else briefly(self.annotation)
        return f"has to be of type {name}: " if name else ""

    def _told(self, fault: Any) -> str:
        """What is wrong. A validator of the application's may quote the value, and a place in it may be a key."""
        if self.sensitive:
            return f"refused ({fault['type']})"
        place = ".".join(map(str, fault["loc"]))
        return cut(f"{place}: {fault['msg']}" if place else str(fault["msg"]), LONGEST_FAULT)

    def _refuse_what_sql_cannot_compare(self, value: object) -> None:
        if isinstance(value, datetime) and value.tzinfo is None:
            raise invalid(self.name, "is a naive datetime; give it a time zone")
        if isinstance(value, int) and not SMALLEST_INTEGER <= value <= LARGEST_INTEGER:
            raise invalid(self.name, "does not fit into 64 bits")


def arguments_in(cls: type, *, bare: bool) -> Iterator[Argument]:
    """The arguments in the body of `cls` itself; with `bare`, a ``name: Mapped[T]`` without arg() is one too."""
    hints = get_annotations(cls)
    for name, value in vars(cls).items():
        if isinstance(value, Spec) and name not in hints:
            raise _unusable(cls, name, "has no annotation")
    for name, hint in hints.items():
        spec = vars(cls).get(name, Spec() if bare else None)
        annotation = _mapped(cls, name, hint) if spec is None or isinstance(spec, Spec) else MISSING
        if isinstance(spec, Spec) and (annotation is not MISSING or name in vars(cls)):
            yield _argument(cls, name, annotation, spec)


def unmapped_in(cls: type) -> Iterator[str]:
    """Names that the body of `cls` annotates without Mapped[...] and gives no value, which SQLAlchemy refuses."""
    for name, hint in get_annotations(cls).items():
        if (
            name not in vars(cls)
            and not (name.startswith("__") and name.endswith("__"))
            and not _is_known(cls, name, hint)
        ):
            yield name


def _is_known(cls: type, name: str, hint: Any) -> bool:
    """Whether SQLAlchemy knows what to make of it: a Mapped of some kind, or what is no attribute of objects."""
    if isinstance(hint, str) and _KNOWN.search(hint):
        return True
    try:
        origin = get_origin(found := _evaluated(cls, name, hint))
    except Exception:
        return False
    return found is ClassVar or origin is ClassVar or (isinstance(origin, type) and issubclass(origin, MappedBase))


def _mapped(cls: type, name: str, hint: Any) -> Any:
    """The T of ``Mapped[T]``; MISSING for an annotation of another kind."""
    if isinstance(hint, str) and not _MAPPED.match(hint):
        return MISSING
    try:
        hint = _evaluated(cls, name, hint)
    except NameError as error:
        raise _unusable(
            cls, name, f"names a type that its module does not have when it is imported ({error})"
        ) from None
    return get_args(hint)[0] if get_origin(hint) is Mapped else MISSING


def _evaluated(cls: type, name: str, hint: Any) -> Any:
    names = ChainMap(sys.modules[cls.__module__].__dict__, {cls.__name__: cls}, dict(vars(cls)))
    holder = type(cls.__name__, (), {"__annotations__": {name: hint}, "__module__": cls.__module__})
    return get_type_hints(holder, dict(names), include_extras=True)[name]


def _argument(cls: type, name: str, annotation: Any, spec: Spec) -> Argument:
    if annotation is MISSING:
        raise without_mapped(cls, name)
    try:
        argument = Argument(name, annotation, TypeAdapter(annotation), spec)
    except (PydanticUserError, TypeError, NameError) as error:
        raise _unusable(cls, name, f"has a type that pydantic cannot check ({type(error).__name__})") from error
    if spec.default is not MISSING:
        _check_default(cls, argument)
    return argument


def _check_default(cls: type, argument: Argument) -> None:
    try:
        argument.default()
    except Exception as error:
        raise _unusable(cls, argument.name, "has a default that it does not accept itself") from error


def without_mapped(cls: type, name: str) -> DeclarationError:
    """The refusal of an annotation that is not Mapped[...]."""
    return _unusable(cls, name, "is not annotated with Mapped[...]")


def _unusable(cls: type, name: str, why: str) -> DeclarationError:
    return DeclarationError("MAGIK_ARG_DECLARATION", f"{cls.__qualname__}.{name} {why}.", field=name)
