"""What binds one of several processes to its supervisor: a socket of which each has an end.

The supervisor asks how the process is, and tells it to stop. That its end is closed means that it is gone, however it
went: then the process drains as at a signal, and nobody works on as an orphan.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from typing import Any, Final

ASK: Final = b"?"
STOP: Final = b"."
STARTING: Final = {"ready": False, "why": "starting"}


class Tie(threading.Thread):
    """The thread `magik-tie`, at the end of the supervised. `state` is asked in it, and has to answer at once."""

    def __init__(self, descriptor: int, stop: Callable[[], None]) -> None:
        super().__init__(name="magik-tie", daemon=True)
        self._descriptor, self._tell = descriptor, stop  # _stop is the thread's own, and called in what a job forks
        self.state: Callable[[], dict[str, Any]] = STARTING.copy

    def run(self) -> None:
        stopped = False
        with contextlib.suppress(OSError), socket.socket(fileno=self._descriptor) as end:
            end.set_inheritable(False)
            while word := end.recv(1):
                if word == ASK:
                    end.sendall(json.dumps(self.state()).encode() + b"\n")
                else:
                    stopped = True
                    self._tell()
        if not stopped:  # one that drains already goes on with that
            self._tell()
