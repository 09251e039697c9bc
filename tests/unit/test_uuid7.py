"""Ids: version 7, in the order they were made, told apart by any number of threads."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

from magik_sa.uuid7 import Clock, uuid7


def test_an_id_is_a_uuid_of_version_7_that_tells_its_time() -> None:
    before = time.time_ns() // 1_000_000
    made = uuid7()
    assert (made.version, made.variant) == (7, UUID(int=0x8 << 60).variant)
    assert before <= made.int >> 80 <= before + 5_000


def test_ids_of_one_process_grow_and_never_repeat() -> None:
    made = [uuid7() for _ in range(20_000)]
    assert made == sorted(set(made))


def test_threads_never_make_the_same_id() -> None:
    with ThreadPoolExecutor(8) as pool:
        made = [id for ids in pool.map(lambda _: [uuid7() for _ in range(2_000)], range(8)) for id in ids]
    assert len(set(made)) == len(made)


def test_a_forked_child_makes_ids_of_its_own() -> None:
    """Also from a clock that stands still, and with chance that was drawn before."""
    clock, reading = uuid7, os.pipe()
    clock()
    pid = os.fork()
    if not pid:
        os.write(reading[1], "".join(clock.several(50)).encode())
        os._exit(0)
    ours = set(clock.several(50))
    os.waitpid(pid, 0)
    theirs = os.read(reading[0], 50 * 32).decode()
    os.close(reading[0])
    os.close(reading[1])
    assert ours.isdisjoint({theirs[at : at + 32] for at in range(0, len(theirs), 32)})


def test_several_are_as_many_made_one_by_one() -> None:
    clock = Clock()
    made = [UUID(each) for each in clock.several(2_000)]
    assert made == sorted(set(made))
    assert {id.version for id in made} == {7}
    assert made[-1] < clock()


def test_ids_grow_where_the_clock_is_set_back_or_the_counter_is_full() -> None:
    clock = Clock()
    first = clock()
    clock._millis += 60_000
    clock._tail = (1 << 74) - 1
    assert first < clock() < clock()
