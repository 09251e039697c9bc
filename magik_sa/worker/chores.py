"""What has its time while the locker claims and while it waits: notes, suspects, pauses, what waits for too long."""

from __future__ import annotations

import time

from ..claim import Claimed
from .completer import Completer
from .ear import Ear
from .line import Line
from .stock import PATIENCE, Stock
from .tally import Tally


class Chores:
    """`do` them when `seconds` says 0; only the locker thread does. What has to be completed is left to it."""

    def __init__(self, line: Line, stock: Stock, ear: Ear, tally: Tally, completer: Completer) -> None:
        self._line, self._stock, self._ear, self._tally, self._completer = line, stock, ear, tally, completer

    def seconds(self) -> float | None:
        """Until the next one is due; None where there is none."""
        stock = self._stock
        waits = [stock.book.seconds_to_mark(), stock.seconds_to_suspect(), stock.seconds_to_late()]
        waits += [self._ear.seconds_to_pauses(), self._seconds_to_tell(), self._completer.seconds()]
        return min((wait for wait in waits if wait is not None), default=None)

    def do(self) -> None:
        """Those whose time has come."""
        self._mark()
        if self._ear.seconds_to_pauses() == 0:
            self._heed_pauses()
        if self._stock.seconds_to_suspect() == 0:
            self._line.claims.notes.begun([self._stock.suspects.first.id])
            self._stock.start_suspect()
        if self._stock.seconds_to_late() == 0:
            self.give_back(self._stock.take_back(PATIENCE))
        if self._seconds_to_tell() == 0:
            self._line.tell_ended(self._tally)

    def give_back(self, unstarted: list[Claimed]) -> None:
        """Others may have these, struck already, and are told. If the connection breaks, that gives them back too."""
        if unstarted:
            self._stock.leaving = unstarted  # their notes may be left then
            self._line.claims.give_back(unstarted)
            self._line.tell({job.row["queue"] for job in unstarted})
            self._stock.leaving = []

    def _mark(self) -> None:
        """Say of the runs that have lasted a while that they have begun."""
        if due := self._stock.book.due_to_mark():
            self._line.claims.notes.begun([job.id for job in due])
            self._stock.book.mark(due)

    def _heed_pauses(self) -> None:
        """Give back what waits here of a paused queue, and the flags, which are raised anew where there is a reason."""
        self._ear.looks_at_pauses()
        self._line.idle.lower_flags(tell=False)
        if queues := self._stock.unstarted():
            self.give_back(self._stock.take_back_of(self._line.paused(queues)))

    def _seconds_to_tell(self) -> float | None:
        """Until it is said what has ended of late; None where nothing has since."""
        return self._tally.seconds(time.monotonic())
