"""An argument as the attribute of a job: a checked value, written to the JSON of the `args` column.

The values that a job has shown are kept beside the JSON they came from (`args`, the column). Another JSON object,
because the row was loaded again or an argument was set, makes them stale by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn

from sqlalchemy import inspect
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm.attributes import flag_dirty

from .args import Argument, Taken
from .errors import EnqueueError
from .expression import expression
from .key import digest
from .sealed import Sealed
from .storable import MAX_ARGS_BYTES, encoded, fitting, invalid
from .unreadable import Unreadable

if TYPE_CHECKING:
    from .declaration import Declaration

_SHOWN: Final = "_magik_shown"

Kept = tuple[dict[str, Any], dict[str, Any]]  # the JSON of a job's row, and values that were read from this very object


class ArgumentAttribute(hybrid_property[Any]):
    """What stands on the class where the body said ``name: Mapped[T] = arg()``."""

    def __init__(self, argument: Argument) -> None:
        super().__init__(lambda job: shown(job, argument), lambda job, value: assign(job, {argument.name: value}))
        self.__name__ = argument.name
        self.argument = argument
        self.expr = lambda owner: expression(owner, argument)
        self.update_expr = self._refuse_update

    def _refuse_update(self, cls: Any, value: Any) -> NoReturn:  # noqa: ARG002
        """An UPDATE of rows would go round the checks and the key."""
        raise invalid(self.argument.name, "cannot be set by an UPDATE of rows; set it on a job")


def shown(job: Any, argument: Argument) -> Any:
    """The value of an argument on a job.

    Of a list or a dict nobody will tell SQLAlchemy that it was changed in place, and a flush looks only at what it was
    told of: a job that has shown one takes part in the next flush, where it is compared.
    """
    raw, values = _kept(job)
    if argument.name not in values:
        values[argument.name] = _value(raw, argument)
    value = values[argument.name]
    if _changeable(value) and inspect(job).key is not None:
        flag_dirty(job)
    return value


def read_all(job: Any) -> None:
    """Read every argument of the job's row. Raises ``MAGIK_ARGS_INVALID`` for one that does not fit its declaration."""
    raw, values = _kept(job)
    for name, argument in type(job).__magik__.arguments.items():
        values[name] = _value(raw, argument)


def fill(job: Any, given: Mapping[str, Any]) -> None:
    """Set all arguments of a job that is being built; defaults are written too."""
    arguments = type(job).__magik__.arguments
    taken = {
        name: argument.take(given[name] if name in given else argument.default())
        for name, argument in arguments.items()
    }
    raw, values = _with(job, {}, {}, taken)
    vars(job).update({"args": raw, _SHOWN: (raw, values)})


def coded(declaration: Declaration, given: Mapping[str, Any]) -> str | None:
    """The arguments of a job that is not built, as the JSON of its row; None where they are not its class's, or too
    large: building the job says so. Raises ``MAGIK_ARGS_INVALID`` for one that does not fit.
    """
    if not given.keys() <= declaration.arguments.keys():
        return None
    fields = [
        argument.head + argument.take(given[name] if name in given else argument.default()).coded
        for name, argument in declaration.arguments.items()
    ]
    whole = b"{%b}" % b",".join(fields)
    return whole.decode() if len(whole) <= MAX_ARGS_BYTES else None


def assign(job: Any, given: Mapping[str, Any]) -> None:
    """Check and set some arguments of a job, and its key with them. Nothing is changed where one of them is refused."""
    arguments = type(job).__magik__.arguments
    taken = {name: arguments[name].take(value) for name, value in given.items()}
    raw, values = _with(job, *_kept(job), taken)
    job.args = raw
    vars(job)[_SHOWN] = raw, values


def _with(job: Any, raw: dict[str, Any], values: dict[str, Any], taken: Mapping[str, Taken]) -> Kept:
    """The JSON of the job's row and its values, these among them; with its key where it is one of theirs."""
    declaration = type(job).__magik__
    sizes = {name: len(encoded(stored, name)) for name, stored in raw.items() if name not in taken}
    fitting({**sizes, **{name: len(each.coded) for name, each in taken.items()}})
    raw = _sealed(declaration.arguments, {**raw, **{name: each.stored for name, each in taken.items()}})
    values = {**values, **{name: each.value for name, each in taken.items()}}
    by = declaration.idempotent_by
    if by is not None and (not by or not taken.keys().isdisjoint(by)):
        _rekey(job, raw, values)
    return raw, values


def settle(job: Any) -> None:
    """Before a flush: write what was changed in place since it was shown, check what did not come by `assign`."""
    if isinstance(job.__dict__.get("args"), Unreadable | None):
        return
    arguments = type(job).__magik__.arguments
    foreign = job.__dict__.get(_SHOWN, (None,))[0] is not job.args and inspect(job).attrs.args.history.added
    raw, values = _kept(job)
    if foreign:
        values = {name: _value(raw, argument) for name, argument in arguments.items()}
        assign(job, values)
        return
    mutable = {name: value for name, value in values.items() if _changeable(value)}
    changed = {
        name: value for name, value in mutable.items() if arguments[name].dump(value) != _before(raw, arguments[name])
    }
    if changed:
        assign(job, changed)


def _value(raw: Mapping[str, Any], argument: Argument) -> Any:
    return argument.read(raw[argument.name]) if argument.name in raw else argument.default()


def _sealed(arguments: Mapping[str, Argument], raw: dict[str, Any]) -> dict[str, Any]:
    secret = [name for name, argument in arguments.items() if argument.sensitive]
    return Sealed(raw, secret) if secret else raw


def _before(raw: Mapping[str, Any], argument: Argument) -> Any:
    return raw[argument.name] if argument.name in raw else argument.dump(argument.default())


def _rekey(job: Any, raw: Mapping[str, Any], values: dict[str, Any]) -> None:
    """Give the job the digest of its key. Once the row may exist the key is what others were measured by, and stays."""
    declaration = type(job).__magik__
    by = declaration.idempotent_by or ()
    keyed = [declaration.arguments[name] for name in by]
    for argument in keyed:
        if argument.name not in values:
            values[argument.name] = _value(raw, argument)
    key_digest = digest(keyed, values)
    if inspect(job).key is None:
        job.key_digest = key_digest
    elif key_digest != job.key_digest:
        names = ", ".join(by)
        raise EnqueueError("MAGIK_ARGS_READ_ONLY", f"{declaration.name} is idempotent by {names}.", field=names)


def _kept(job: Any) -> Kept:
    """Both as they are now."""
    raw, kept = job.args, job.__dict__.get(_SHOWN)
    if isinstance(raw, Unreadable):
        raise invalid("args", f"cannot be read ({raw.why})")
    if kept is None or kept[0] is not raw:
        kept = job.__dict__[_SHOWN] = raw, {}
    return raw, kept[1]


def _changeable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return True
    return False
