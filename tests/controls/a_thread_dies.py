"""A worker in which a performer dies with its first job, as no job can make it."""

from typing import Any

from magik_sa.worker import performer

from . import work


def broken(_: object) -> None:
    """A fault of the worker itself."""
    raise RuntimeError("not a job's")


if __name__ == "__main__":
    module: Any = performer
    module.run = broken
    work()
