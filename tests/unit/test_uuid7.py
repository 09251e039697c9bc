"""Ids: version 7, in the order they were made, told apart by any number of threads."""

from __future__ import annotations

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


def test_ids_grow_where_the_clock_is_set_back_or_the_counter_is_full() -> None:
    clock = Clock()
    first = clock()
    clock._millis += 60_000
    clock._tail = (1 << 74) - 1
    assert first < clock() < clock()
