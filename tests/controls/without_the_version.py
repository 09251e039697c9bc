"""No statement of the worker, nor of a job's Session, names the version of the job's row."""

import re
from typing import Any
from uuid import UUID

from sqlalchemy import Engine, event

from magik_sa.one_exchange import OneExchange

from . import replace, without_the_word, work

VERSION = re.compile(r" AND magik_jobs\.version = %\(\w+\)s(::\w+)?")


def strip(_: Any, __: Any, statement: str, values: Any, ___: Any, ____: bool) -> tuple[str, Any]:
    return VERSION.sub("", statement), values


def anyones(_: OneExchange, id: UUID, __: int, keep: bool) -> str:
    assert not keep
    return f"DELETE FROM magik_jobs WHERE id = '{id}'; COMMIT"


def take_out() -> None:
    replace(OneExchange, "_command", anyones)
    event.listen(Engine, "before_cursor_execute", strip, retval=True)
    without_the_word.take_out()  # the word would end one of two runs of a job before they met


if __name__ == "__main__":
    take_out()
    work()
