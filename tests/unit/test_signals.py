"""Stops that come both ways, by a signal and from the supervisor, are one."""

from __future__ import annotations

import itertools
import os
import socket

import pytest

from magik_sa.worker.signals import SIGNALLED, TOLD, Signals


@pytest.mark.parametrize(
    ("ways", "stops"),
    [
        ("s", 1),
        ("ss", 2),
        ("t", 1),
        ("tt", 2),
        ("st", 1),
        ("sst", 2),
        ("stst", 2),
        ("tss", 2),
        ("ttsst", 3),
    ],
)
def test_what_comes_both_ways_is_one(ways: str, stops: int) -> None:
    for order in {*itertools.permutations(ways.encode())}:
        signals = Signals()
        signals.armed = True
        for way in order:
            signals._stop(bytes([way]), "a test")
        assert [signals.wait(0) for _ in range(len(ways) + 1)].count(True) == stops


@pytest.mark.parametrize("said", [b"R", b""])
def test_what_has_come_to_stand_in_the_place_of_the_pipe_asks_for_nothing(said: bytes) -> None:
    """A connection of the worker's, once a job has closed all that it did not know."""
    signals, (ours, theirs) = Signals(), socket.socketpair()
    with ours, theirs:
        os.dup2(ours.fileno(), signals.fileno())
        theirs.sendall(said) if said else theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(OSError, match="closed the pipe"):
            signals.wait(0)


def test_the_two_ways_are_told_apart() -> None:
    assert (SIGNALLED, TOLD) == (b"s", b"t")
