"""A process holds the supervisor's end of the tie as well, so that it never sees it closed."""

import socket
import subprocess
from typing import Any

from magik_sa.worker import child

from . import replace, work

pairs: list[socket.socket] = []


def socketpair() -> tuple[socket.socket, socket.socket]:
    pairs[:] = socket.socketpair()
    return pairs[0], pairs[1]


def popen(*words: Any, pass_fds: list[int], **options: Any) -> Any:
    return subprocess.Popen(*words, pass_fds=[*pass_fds, pairs[0].fileno()], **options)


class Sockets:
    """As much of the module as is used there."""

    socket, socketpair = socket.socket, staticmethod(socketpair)


class Processes:
    """As much of the module as is used there."""

    DEVNULL, Popen = subprocess.DEVNULL, staticmethod(popen)
    _args_from_interpreter_flags = staticmethod(subprocess._args_from_interpreter_flags)  # type: ignore[attr-defined]


def take_out() -> None:
    replace(child, "socket", Sockets)
    replace(child, "subprocess", Processes)


if __name__ == "__main__":
    take_out()
    work()
