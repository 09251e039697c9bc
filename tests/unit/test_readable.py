"""What is waited for has something to read, whatever the number of its descriptor."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator

import pytest

from magik_sa.readable import readable


@pytest.fixture
def high() -> Iterator[int]:
    """The first number that select() refuses is in use."""
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096 if most == resource.RLIM_INFINITY else min(4096, most), most))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
    yield max(files)
    for file in files:
        os.close(file)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))


def test_what_has_something_to_read_is_told_apart_above_the_reach_of_select(high: int) -> None:
    (mine, yours), (read, write) = socket.socketpair(), os.pipe()
    with mine, yours:
        assert high > 1_024
        assert min(mine.fileno(), read) > 1_024
        assert readable([mine, read], 0) == []
        os.write(write, b"x")
        assert readable([mine, read], 10) == [read]
        yours.close()
        assert readable([mine], 10) == [mine]  # at its end
    os.close(read)
    os.close(write)


def test_a_wait_longer_than_poll_can_take_ends_with_what_comes() -> None:
    read, write = os.pipe()
    os.write(write, b"x")
    assert readable([read], 10 * 365 * 86_400.0) == [read]
    assert readable([read], float("inf")) == [read]
    assert readable([read], -1) == [read]
    os.close(read)
    os.close(write)
