"""A signal that comes before the worker is ready is lost."""

from types import FrameType

from magik_sa.worker.signals import Signals

from . import replace

original = Signals._handle


def handle(self: Signals, number: int, frame: FrameType | None) -> None:
    if self.armed:
        original(self, number, frame)


def take_out() -> None:
    replace(Signals, "_handle", handle)
