"""``python -m tests.controls``: the worker's program, for a run of the tests that does without something."""

from . import work

if __name__ == "__main__":
    work()
