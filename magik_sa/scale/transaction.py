"""The shape ``transaction``: `perform` asks the database, and then waits for something slow with the transaction open.

Meanwhile its row locks are held and VACUUM cleans nothing up that has died since, in any table. Slow is a sleep, a
request by HTTP, mail, another program. The Session's own statements count, and those of `once` and `bulk_enqueue`;
``session.commit()`` ends it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Final

from .calls import asks, ends, is_session, is_slow
from .source import Body, Warned

WHY: Final = (
    "The transaction stays open while it waits: it keeps locks, a connection, and VACUUM from cleaning up. Wait first"
    " and ask then, say session.commit() between the two, or do the slow part in a job of its own."
)
ENDINGS: Final = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def transactions(body: Body) -> Iterator[Warned]:
    """The first slow call of each line that comes while a transaction is open."""
    walk = _Walk(body)
    walk.block(body.tree.body, None)
    for line, call in sorted(walk.found.items()):
        said = f"{ast.unparse(call.func)[:60]}() with a transaction open since line {walk.since[line]}"
        yield body.warned("transaction", call, said, WHY)


class _Walk:
    """Goes through statements in the order in which they run; where ways part, an open transaction on one is one."""

    def __init__(self, body: Body) -> None:
        self.body = body
        self.found: dict[int, ast.Call] = {}
        self.since: dict[int, int] = {}

    def block(self, statements: Iterable[ast.stmt], open_since: int | None) -> int | None:
        """The line since which one is open behind these; None where none is, or nobody gets there."""
        for statement in statements:
            open_since = self._statement(statement, open_since)
            if isinstance(statement, ENDINGS):
                return None
        return open_since

    def _statement(self, node: ast.stmt, open_since: int | None) -> int | None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return open_since  # not run here
        if isinstance(node, ast.If | ast.Match):
            return self._parted(node, open_since)
        if isinstance(node, ast.For | ast.While):
            return self._loop(node, open_since)
        if isinstance(node, ast.Try | ast.TryStar):
            return self._tried(node, open_since)
        if isinstance(node, ast.With):
            return self._with(node, open_since)
        return self._calls(node, open_since)

    def _parted(self, node: ast.If | ast.Match, open_since: int | None) -> int | None:
        before = self._calls(node.test if isinstance(node, ast.If) else node.subject, open_since)
        ways = [node.body, node.orelse] if isinstance(node, ast.If) else [case.body for case in node.cases]
        return _any([self.block(way, before) for way in ways])

    def _loop(self, node: ast.For | ast.While, open_since: int | None) -> int | None:
        """Twice: what one turn leaves open the next one finds."""
        before = self._calls(node.iter if isinstance(node, ast.For) else node.test, open_since)
        once = self.block(node.body, before)
        again = self.block(node.body, _any([once, before]) if once is None else once)
        return self.block(node.orelse, _any([before, once, again]))

    def _tried(self, node: ast.Try | ast.TryStar, open_since: int | None) -> int | None:
        after = self.block([*node.body, *node.orelse], open_since)
        ways = [after, *(self.block(handler.body, after) for handler in node.handlers)]
        return self.block(node.finalbody, _any(ways))

    def _with(self, node: ast.With, open_since: int | None) -> int | None:
        """``with session.begin():`` ends with a commit."""
        for item in node.items:
            open_since = self._calls(item.context_expr, open_since)
        after = self.block(node.body, open_since)
        return None if any(_begins(self.body, item.context_expr) for item in node.items) else after

    def _calls(self, node: ast.AST, open_since: int | None) -> int | None:
        for call in _in_order(node):
            if ends(self.body, call):
                open_since = None
            elif asks(self.body, call):
                open_since = open_since or call.lineno
            elif open_since is not None and is_slow(self.body, call) and call.lineno not in self.found:
                self.found[call.lineno], self.since[call.lineno] = call, open_since
        return open_since


def _in_order(node: ast.AST) -> Iterator[ast.Call]:
    """Calls as they are made: arguments before the call that takes them. Not those of a lambda, which come later."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.Lambda):
            yield from _in_order(child)
    if isinstance(node, ast.Call):
        yield node


def _begins(body: Body, node: ast.expr) -> bool:
    function = node.func if isinstance(node, ast.Call) else None
    return isinstance(function, ast.Attribute) and function.attr == "begin" and is_session(body, function.value)


def _any(ways: list[int | None]) -> int | None:
    return min((way for way in ways if way is not None), default=None)
