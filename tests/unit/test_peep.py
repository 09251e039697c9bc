"""A look at a socket that keeps the interpreter."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from select import poll

import pytest

from magik_sa.peep import Peep

LOOKS = 20_000
SIGNALS = 20_000


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_it_sees_what_has_come(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    peep = Peep(ours.fileno())
    assert not peep.sees()
    theirs.send(b"x")
    assert peep.sees()
    ours.recv(1)
    assert not peep.sees()


def test_it_sees_that_the_other_end_is_gone(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    peep = Peep(ours.fileno())
    theirs.close()
    assert peep.sees()


def test_of_a_descriptor_that_is_none_any_more_it_says_so(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, _ = pair
    peep = Peep(ours.fileno())
    ours.close()
    assert peep.sees()


def test_at_nothing_it_sees_nothing() -> None:
    assert not Peep(-1).sees()


def test_a_signal_that_comes_meanwhile_is_nothing_to_read(pair: tuple[socket.socket, socket.socket]) -> None:
    """The system breaks the question off then."""
    peep, seen = Peep(pair[0].fileno()), False
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    send = f"import os\nfor _ in range({SIGNALS}): os.kill({os.getpid()}, {signal.SIGUSR1:d})"
    try:
        with subprocess.Popen([sys.executable, "-c", send]) as sender:
            while sender.poll() is None:
                seen = peep.sees() or seen
        assert not seen
    finally:
        signal.signal(signal.SIGUSR1, before)


def given_away(look: Callable[[], object]) -> int:
    """How often another thread got the interpreter during so many looks, which is taken from nobody by force."""
    turns, over = 0, threading.Event()
    begun = threading.Event()

    def other() -> None:
        nonlocal turns
        begun.set()
        while not over.is_set():
            turns += 1
            theirs.send(b"x")  # gives it back at once
            ours.recv(1)

    ours, theirs = socket.socketpair()
    with ours, theirs:
        interval = sys.getswitchinterval()
        sys.setswitchinterval(100)  # before it begins: who waits goes on to wait as it was when he began
        thread = threading.Thread(target=other)
        thread.start()
        begun.wait()
        try:
            before = turns
            for _ in range(LOOKS):
                look()
            return turns - before
        finally:
            sys.setswitchinterval(interval)
            over.set()
            thread.join()


def test_nobody_else_gets_the_interpreter_meanwhile(pair: tuple[socket.socket, socket.socket]) -> None:
    peep = Peep(pair[0].fileno())
    assert given_away(peep.sees) <= 1  # what the other was just about


def test_python_s_own_gives_it_away(pair: tuple[socket.socket, socket.socket]) -> None:
    """The control."""
    own = poll()
    own.register(pair[0].fileno())
    assert given_away(lambda: own.poll(0)) > 1
