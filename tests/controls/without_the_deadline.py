"""A worker that is told to stop waits for its jobs, however long they take."""

from magik_sa.worker import process
from magik_sa.worker.ending import DRAINED
from magik_sa.worker.signals import Signals
from magik_sa.worker.worker import Worker

from . import replace


def drain(worker: Worker, _: Signals) -> int:
    worker.stop()
    while not worker.wait(0.05):
        pass
    return DRAINED


def take_out() -> None:
    replace(process, "drain", drain)
