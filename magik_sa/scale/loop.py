"""The shape ``loop``: a ``for`` in `perform` over what grows without bound, in which nothing is waited for.

Python's global lock is then held for as long as there is data, and the jobs of all other threads, and the locker, run
beside it at a fraction of their speed. It is said of a loop over the whole result of a query; of one over anything else
only if all of `perform` waits for nothing. A loop that has a visible bound, or may be left before its end, is passed
over.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from typing import Final

from .calls import ASKS, is_pure, is_session, named
from .source import Body, Warned

WHY: Final = (
    "It computes for as long as there is data, and what else this process runs is slow meanwhile. Compute in SQL, go on"
    " in a next job after so many (docs/long-jobs.md), or give it a queue and a worker of its own with --concurrency 1."
)
WRAPPERS: Final = {"enumerate", "list", "tuple", "sorted", "reversed", "zip", "set", "iter"}
BOUNDS: Final = {"limit", "fetchmany", "islice", "first", "one", "one_or_none", "fetch", "slice"}
LEAVES: Final = (ast.Break, ast.Return, ast.Raise)


def loops(body: Body) -> Iterator[Warned]:
    """Each loop of this shape; one inside another is told of as one."""
    pure = all(is_pure(body, statement) for statement in body.tree.body)
    inside: set[ast.AST] = set()
    for node in ast.walk(body.tree):
        if not isinstance(node, ast.For) or node in inside or bounded(body, node.iter):
            continue
        if (pure or is_query(body, node.iter)) and _computes(body, node):
            inside.update(ast.walk(node))
            said = f"a loop over {ast.unparse(node.iter)[:60]} that waits for nothing and has no bound"
            yield body.warned("loop", node, said, WHY)


def _computes(body: Body, loop: ast.For) -> bool:
    below = [each for statement in loop.body for each in ast.walk(statement)]
    leaves = any(isinstance(each, LEAVES) for each in below)
    stops = any(isinstance(each, ast.Attribute) and each.attr == "stopping" for each in below)
    return not (leaves or stops) and all(is_pure(body, statement) for statement in loop.body)


def bounded(body: Body, node: ast.expr, seen: Collection[str] = ()) -> bool:
    """Whether a bound can be seen: of a literal, a constant, a slice, a limit, or of what it was made from."""
    if isinstance(node, ast.Constant | ast.List | ast.Tuple | ast.Set | ast.Dict):
        return True
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Slice) and node.slice.upper is not None
    if isinstance(node, ast.Call):
        return _bounded_call(body, node, seen)
    if isinstance(node, ast.Name) and node.id not in seen:
        values = assigned(body, node.id)
        if not values:
            return named(body, node) is not None  # a constant of the module
        return all(bounded(body, value, [*seen, node.id]) for value in values)
    return False


def _bounded_call(body: Body, call: ast.Call, seen: Collection[str]) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name == "range":
        return all(isinstance(each, ast.Constant) for each in call.args)
    called = {
        each.func.attr for each in ast.walk(call) if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute)
    }
    if name in BOUNDS or called & BOUNDS:
        return True
    if name in WRAPPERS:
        return any(bounded(body, each, seen) for each in call.args)
    names = {each.id for each in ast.walk(call) if isinstance(each, ast.Name)} - {*seen}
    return any(_limited(value) for name in names for value in assigned(body, name))


def _limited(value: ast.expr) -> bool:
    """A statement that was written with a limit before: ``few = select(…).limit(100)``."""
    calls = [each.func for each in ast.walk(value) if isinstance(each, ast.Call)]
    return any(isinstance(function, ast.Attribute) and function.attr in BOUNDS for function in calls)


def is_query(body: Body, node: ast.expr, seen: Collection[str] = ()) -> bool:
    """Whether it is what the Session answered, as it is or laid out."""
    if isinstance(node, ast.Call):
        function = node.func
        if isinstance(function, ast.Attribute):
            return (is_session(body, function.value) and function.attr in ASKS) or is_query(body, function.value, seen)
        return getattr(function, "id", "") in WRAPPERS and any(is_query(body, each, seen) for each in node.args)
    if isinstance(node, ast.Name) and node.id not in seen:
        return any(is_query(body, value, [*seen, node.id]) for value in assigned(body, node.id))
    return False


def assigned(body: Body, name: str) -> list[ast.expr]:
    """What a local name is given."""
    found: list[ast.expr] = []
    for node in ast.walk(body.tree):
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name for to in node.targets):
            found.append(node.value)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and isinstance(node.target, ast.Name):
            found += [node.value] if node.target.id == name and node.value is not None else []
    return found
