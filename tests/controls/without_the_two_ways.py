"""The supervisor hands a signal on as a signal, which a process takes for a second one where all had the first."""

from magik_sa.worker.child import Child

from . import replace, work


def stop(self: Child) -> None:
    self._process.terminate()


def take_out() -> None:
    replace(Child, "stop", stop)


if __name__ == "__main__":
    take_out()
    work()
