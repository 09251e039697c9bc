"""No statement of the worker, nor of a job's Session, names the version of the job's row."""

import re
from typing import Any

from sqlalchemy import Engine, event

from . import work

VERSION = re.compile(r" AND magik_jobs\.version = %\(\w+\)s(::\w+)?")


@event.listens_for(Engine, "before_cursor_execute", retval=True)
def _strip(_: Any, __: Any, statement: str, values: Any, ___: Any, ____: bool) -> tuple[str, Any]:
    return VERSION.sub("", statement), values


if __name__ == "__main__":
    work()
