"""The process of a worker: boot, watch, and drain when a signal comes."""

from __future__ import annotations

import gc
import logging
import time
from typing import TYPE_CHECKING, NoReturn

from ..errors import BootRefused
from ..failure import describe
from ..logs import say, to_stderr
from ..settings import Settings
from .ending import DEADLINE, DRAINED, LOST, end, failed, refuse, tell
from .signals import Signals
from .worker import Worker

if TYPE_CHECKING:
    from .tie import Tie

WATCH_EVERY = 1.0  # seconds between two looks at the threads
READY_EVERY = 0.02  # seconds between two until the worker listens
LOOK_EVERY = 0.05  # seconds between two for a second signal, while it drains


def run(settings: Settings, signals: Signals, tie: Tie | None = None) -> NoReturn:
    """Work until a signal comes, or the supervisor at the other end of the tie says so, or is gone."""
    in_json = settings.log_format == "json"
    worker = Worker.of(settings)
    if tie is not None:
        tie.state = worker.state
    try:
        worker.boot(imported=signals.install)  # which may have turned the signals off
    except BootRefused as refusal:
        refuse(refusal.findings, in_json)
    gc.collect()
    gc.freeze()  # what has been imported stays: no collection has to look at it again
    to_stderr(settings.log_format)  # after the application's modules, which may have configured logging
    signals.arm()  # before anything is claimed, so that whatever was claimed is drained
    try:
        worker.launch()
        code = work(worker, signals)
    except Exception as error:  # such as a descriptor that a job has closed
        tell(failed(describe(error), None) if in_json else describe(error))
        code = LOST
    end(code)


def work(worker: Worker, signals: Signals) -> int:
    """Watch the threads until a signal comes, then drain."""
    while not signals.wait(WATCH_EVERY if worker.ready(0) else READY_EVERY):
        if worker.failed():
            error = worker.failure()
            tell(failed(str(error), error.code) if worker.settings.log_format == "json" else str(error))
            return LOST
    return drain(worker, signals)


def drain(worker: Worker, signals: Signals) -> int:
    """Let running jobs end within the shutdown timeout; a second signal ends the waiting.

    When the time is up it is looked once more: a process that was frozen meanwhile may have nothing left to wait for.
    """
    say(logging.INFO, "draining", running=len(worker.locker.book))
    worker.stop()
    deadline = time.monotonic() + worker.settings.shutdown_timeout.total_seconds()
    while True:
        left = deadline - time.monotonic()
        if worker.wait(max(0.0, min(left, LOOK_EVERY))):
            say(logging.INFO, "drained")
            return LOST if worker.locker.failure else DRAINED
        if left <= 0 or (signals.wait(0) and worker.locker.book):
            worker.abandon()
            return DEADLINE
