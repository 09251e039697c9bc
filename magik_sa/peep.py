"""Whether a socket has something to read, asked without giving the interpreter away.

Python's own poll() lets other threads run meanwhile. Where ten of them want to, whoever only wanted to know waits for
the interpreter longer than for the answer, which comes at once.
"""

from __future__ import annotations

import ctypes
import errno
import select


class _Poll(ctypes.Structure):
    """``struct pollfd``"""

    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short))


_poll = ctypes.PyDLL(None, use_errno=True).poll  # PyDLL, unlike CDLL, keeps the interpreter during a call
_poll.argtypes = (ctypes.c_void_p, ctypes.c_ulong, ctypes.c_int)


class Peep:
    """At one descriptor, as often as one likes. A negative one never has anything."""

    def __init__(self, descriptor: int) -> None:
        self._asked = _Poll(descriptor, select.POLLIN, 0)
        self._at = ctypes.addressof(self._asked)

    def sees(self) -> bool:
        """Whether there is something to read, or the other end is gone. Also where the descriptor is none."""
        while (seen := _poll(self._at, 1, 0)) < 0 and ctypes.get_errno() == errno.EINTR:
            pass  # a signal has broken it off, and is over
        return bool(seen)
