"""What a call in the application's source is, as far as names tell. A name that leads nowhere is nothing of these."""

from __future__ import annotations

import ast
import builtins
from types import FunctionType, ModuleType
from typing import Any, Final

from .source import Body, body_of

SLOW: Final = ("requests", "httpx", "urllib3", "urllib.request", "http.client", "aiohttp", "subprocess", "smtplib")
SLOW_TOO: Final = ("boto3", "botocore", "time.sleep", "asyncio.sleep", "socket.create_connection", "ftplib", "paramiko")
MAKERS: Final = {"client", "resource", "session"}
ASKS: Final = {"execute", "scalars", "scalar", "get", "get_one", "query", "flush", "refresh", "merge", "connection"}
ENDS: Final = {"commit", "rollback", "close", "reset", "invalidate", "remove"}
OURS: Final = {
    "magik_sa.effects.once",
    "magik_sa.bulk.bulk_enqueue",
}  # ask the database with the Session they are given
PURE: Final = (
    "math",
    "cmath",
    "statistics",
    "decimal",
    "fractions",
    "hashlib",
    "_hashlib",
    "hmac",
    "zlib",
    "re",
    "json",
)
PURE_TOO: Final = (
    "itertools",
    "functools",
    "operator",
    "collections",
    "datetime",
    "uuid",
    "random",
    "base64",
    "string",
)
IMPURE_BUILTINS: Final = {
    "open",
    "print",
    "input",
    "exec",
    "eval",
    "compile",
    "breakpoint",
    "__import__",
    "getattr",
    "map",
}
METHODS: Final = {
    name
    for kind in (str, bytes, bytearray, list, dict, set, frozenset, tuple, int, float, complex)
    for name in dir(kind)
    if not name.startswith("_")
}  # of what is built in, called on whatever it may be
DEEPEST: Final = 3  # functions of the application that are read, one inside the other


def named(body: Body, node: ast.expr) -> Any:
    """The object that a dotted name leads to from the function's own module, or None."""
    if isinstance(node, ast.Attribute):
        owner = named(body, node.value)
        return getattr(owner, node.attr, None) if isinstance(owner, ModuleType) else None
    if not isinstance(node, ast.Name) or node.id in body.locals:
        return _imported(body, node.id) if isinstance(node, ast.Name) else None
    return body.scope.get(node.id, getattr(builtins, node.id, None))


def _imported(body: Body, name: str) -> Any:
    """What ``import requests`` inside of the function brings, if its module is loaded already or was never needed."""
    for node in ast.walk(body.tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            origin = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                if (alias.asname or alias.name.partition(".")[0]) == name:
                    return Imported(origin + (alias.name if alias.asname or origin else name))
    return None


class Imported(ModuleType):
    """A name of a module that is not imported to be looked at: what it has is known by name alone."""

    def __getattr__(self, name: str) -> Any:
        return Imported(f"{self.__name__}.{name}")


def path(thing: Any) -> str:
    """The dotted name under which an object was defined."""
    if isinstance(thing, ModuleType):
        return thing.__name__
    module = getattr(thing, "__module__", None) or ""
    return f"{module}.{getattr(thing, '__qualname__', '')}"


def _within(name: str, roots: tuple[str, ...]) -> bool:
    return any(name == root or name.startswith(f"{root}.") for root in roots)


def is_slow(body: Body, call: ast.Call) -> bool:
    """A sleep, or a request to somebody else: of a module that is for it, or on an object that this module made.

    To make such an object waits for nobody.
    """
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return _leads_out(body, function) and not (name[:1].isupper() or name in MAKERS)


def _leads_out(body: Body, function: ast.expr) -> bool:
    if _within(path(named(body, function)), SLOW + SLOW_TOO):
        return True
    if not isinstance(function, ast.Attribute):
        return False
    owner = function.value
    if isinstance(owner, ast.Call):
        return _leads_out(body, owner.func)
    return isinstance(owner, ast.Name) and any(_leads_out(body, made.func) for made in _made(body, owner.id))


def _made(body: Body, name: str) -> list[ast.Call]:
    """The calls that a local name was made by: ``client = httpx.Client()``, or with ``with``."""
    found: list[ast.expr | None] = []
    for node in ast.walk(body.tree):
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name for to in node.targets):
            found.append(node.value)
        elif (
            isinstance(node, ast.withitem)
            and isinstance(node.optional_vars, ast.Name)
            and node.optional_vars.id == name
        ):
            found.append(node.context_expr)
    return [value for value in found if isinstance(value, ast.Call)]


def is_session(body: Body, node: ast.expr) -> bool:
    """The Session itself."""
    return isinstance(node, ast.Name) and node.id == body.session


def asks(body: Body, call: ast.Call) -> bool:
    """Whether it sends a statement by the Session, and so opens a transaction."""
    function = call.func
    if isinstance(function, ast.Attribute) and is_session(body, function.value):
        return function.attr in ASKS
    return path(named(body, function)) in OURS and any(is_session(body, each) for each in call.args)


def ends(body: Body, call: ast.Call) -> bool:
    """Whether it ends the transaction."""
    function = call.func
    return isinstance(function, ast.Attribute) and is_session(body, function.value) and function.attr in ENDS


def is_pure(body: Body, node: ast.AST, depth: int = DEEPEST) -> bool:
    """Whether all below `node` waits for nobody, as far as it can be read: each call is known to be so."""
    for each in ast.walk(node):
        if isinstance(each, ast.Await | ast.Yield | ast.YieldFrom | ast.With | ast.AsyncFor | ast.Delete):
            return False
        if isinstance(each, ast.expr) and is_session(body, each):
            return False
        if isinstance(each, ast.Call) and not _is_pure_call(body, each, depth):
            return False
    return True


def _is_pure_call(body: Body, call: ast.Call, depth: int) -> bool:
    thing = named(body, call.func)
    if thing is None:
        return isinstance(call.func, ast.Attribute) and call.func.attr in METHODS - ASKS
    name = str(getattr(thing, "__name__", ""))
    if getattr(builtins, name, None) is thing:
        return name not in IMPURE_BUILTINS
    if isinstance(thing, FunctionType) and not _within(path(thing), PURE + PURE_TOO):
        return depth > 0 and _is_pure_function(body, thing, depth)
    return _within(path(thing), PURE + PURE_TOO)


def _is_pure_function(body: Body, function: FunctionType, depth: int) -> bool:
    """A function of the application, read in its turn."""
    inner = body_of(function, body.job)
    return inner is not None and all(is_pure(inner, each, depth - 1) for each in inner.tree.body)
