"""The walk with its marks: in order, and whatever comes to lie before a mark is found within the poll interval."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from uuid import UUID

import psycopg
import pytest

from magik_sa import names
from magik_sa.claim import Claimed, marks
from magik_sa.claim.marks import Marks
from magik_sa.claim.walk import Walks
from magik_sa.server import connect_locking
from tests.tools.clock import Clock, set_in

PLAIN = """
SELECT id FROM magik_jobs WHERE finished_at IS NULL AND expired_at IS NULL AND run_at <= now() AND job_class = 'Known'
 ORDER BY priority, run_at, id"""
LOCK = "SELECT pg_try_advisory_lock(uuid_hash_extended(%s, 'magik_jobs'::regclass::oid::bigint))"
UNLOCK = "SELECT pg_advisory_unlock(uuid_hash_extended(%s, 'magik_jobs'::regclass::oid::bigint))"


class House:
    """A locker's walks, a second session that locks, and the application's."""

    def __init__(self, dsn: str, clock: Clock) -> None:
        self.app = psycopg.connect(dsn, autocommit=True)
        self.other = psycopg.connect(dsn, autocommit=True)
        self.connection, self.clock = connect_locking(dsn, "house"), clock
        self.walks = Walks(self.connection, names.find(self.connection, None))
        self.held: list[UUID] = []
        self.locked_elsewhere: list[UUID] = []

    def add(self, n: int = 1, age: str = "1 h", priority: int = 100) -> list[UUID]:
        add = """
            INSERT INTO magik_jobs (job_class, run_at, priority)
            SELECT 'Known', now() - %s::interval, %s FROM generate_series(1, %s) RETURNING id"""
        return [id for (id,) in self.app.execute(add, (age, priority, n)).fetchall()]

    def take(self, n: int) -> list[UUID]:
        ids = self.walks.walk("default", n, ["Known"], self.held)
        self.held += ids
        return ids

    def spend_budget(self) -> None:
        """From here on full walks are made when they are overdue, and for no other reason."""
        self.walks._budget._saved = -1_000.0

    def close(self) -> None:
        for connection in (self.app, self.other, self.connection):
            connection.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """By which full walks are due."""
    return set_in(monkeypatch, marks)


@pytest.fixture
def house(dsn: str, clock: Clock) -> Iterator[House]:
    house = House(dsn, clock)
    yield house
    house.close()


# ---- what comes to lie before a mark

Event = Callable[[House], UUID]


def comes_with_an_earlier_time(house: House) -> UUID:
    return house.add(age="2 h")[0]


def is_unlocked_elsewhere(house: House) -> UUID:
    (id,) = house.locked_elsewhere
    house.other.execute(UNLOCK, (id,))
    return id


def is_moved_into_the_past(house: House) -> UUID:
    move = "UPDATE magik_jobs SET run_at = now() - interval '2 h', priority = 100 WHERE priority = 150 RETURNING id"
    [(id,)] = house.app.execute(move.encode()).fetchall()
    return UUID(str(id))


def is_committed_after_a_long_time(house: House) -> UUID:
    """As by a transaction that was open for ten minutes; the backlog has been worked off up to the last minute."""
    return house.add(age="70 m")[0]


EVENTS = [
    comes_with_an_earlier_time,
    is_unlocked_elsewhere,
    is_moved_into_the_past,
    is_committed_after_a_long_time,
]


@pytest.fixture
def deep(house: House) -> House:
    """A queue that is never empty, some of it taken; the first row of it is locked by another session."""
    (first,) = house.add(age="65 m")
    house.other.execute(LOCK, (first,))
    house.locked_elsewhere.append(first)
    house.add(100)
    house.add(1, priority=150)
    assert len(house.take(20)) == 20
    assert first not in house.held
    return house


@pytest.mark.parametrize("event", EVENTS)
def test_in_a_queue_that_is_never_empty_it_is_found_within_five_seconds(deep: House, event: Event) -> None:
    id = event(deep)
    deep.clock.now += 4.9
    assert id not in deep.take(10), "the mark is past it"
    deep.clock.now += 0.2
    assert deep.take(1) == [id], "and the full walk finds it before all others"


@pytest.mark.parametrize("event", EVENTS)
def test_where_less_is_found_than_asked_for_it_is_found_at_once(deep: House, event: Event) -> None:
    id = event(deep)
    deep.clock.now += 0.1
    assert id in deep.take(200)


@pytest.mark.parametrize("event", EVENTS)
def test_after_a_wake_up_it_is_found_at_once(deep: House, event: Event) -> None:
    id = event(deep)
    deep.walks.owe(["default"])
    assert deep.take(1) == [id]


@pytest.mark.parametrize("event", EVENTS)
def test_without_the_full_walk_it_is_never_found(deep: House, event: Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the tests above."""
    monkeypatch.setattr(Marks, "is_due", lambda _: False)
    id = event(deep)
    deep.clock.now += 1_000
    deep.walks.owe(["default"])
    assert id not in deep.take(200)
    assert id not in deep.take(200)


def test_what_was_given_back_is_found_again_without_a_full_walk(deep: House) -> None:
    deep.spend_budget()
    id = deep.held.pop(3)
    row = {"id": id, "queue": "default"}
    found = deep.app.execute("SELECT priority, run_at FROM magik_jobs WHERE id = %s", (id,)).fetchone()
    assert found is not None
    row |= {"priority": found[0], "run_at": found[1]}
    deep.walks.step_back([Claimed(row, interrupted=False, suspect=False)])
    assert deep.take(1) == [id]


# ---- what never lies before one


@pytest.mark.parametrize("priority", [-32768, 50, 99, 101, 32767])
def test_a_job_of_another_priority_has_its_turn_at_the_next_walk(house: House, priority: int) -> None:
    house.add(50)
    house.take(10)
    house.spend_budget()
    (id,) = house.add(priority=priority)
    assert (id in house.take(1)) == (priority < 100)
    assert id in house.take(60) + house.held


def test_a_job_of_an_urgent_priority_that_was_worked_off_is_next(house: House) -> None:
    house.add(3, priority=10)
    house.add(50)
    house.take(10)
    house.spend_budget()
    (id,) = house.add(priority=10, age="0")
    assert house.take(1) == [id]


def test_a_commit_that_comes_later_than_younger_ones_is_found_without_a_full_walk(house: House, dsn: str) -> None:
    house.add(3)
    with psycopg.connect(dsn) as late:
        [(id,)] = late.execute("INSERT INTO magik_jobs (job_class) VALUES ('Known') RETURNING id").fetchall()
        younger = house.add(age="0")
        assert younger[0] in house.take(10)
        house.spend_budget()
        walked = house.walks.looked_at("default")
        late.execute("UPDATE magik_jobs SET run_at = %s::timestamptz - interval '0.99 s'", (walked,))
        late.commit()
    assert house.take(10) == [id]


def test_after_the_clock_was_put_back_new_jobs_are_found_without_a_full_walk(house: House, dsn: str) -> None:
    """The marks then stand in the future."""
    house.add(3)
    house.take(10)
    house.spend_budget()
    [(ahead,)] = house.app.execute("SELECT now() + interval '10 m'").fetchall()
    house.walks._of("default").move([], short=True, edge=ahead)
    (id,) = house.add(age="0")
    assert house.take(10) == [id]


def test_rows_of_a_time_that_python_cannot_hold_are_all_found(house: House) -> None:
    house.app.execute(
        "INSERT INTO magik_jobs (job_class, run_at) SELECT 'Known', '-infinity' FROM generate_series(1, 30)"
    )
    house.spend_budget()
    assert len({id for _ in range(10) for id in house.take(3)}) == 30


# ---- whatever the planner does

PLANS = {
    "ours": "",
    "defaults": "SET enable_seqscan = on; SET enable_sort = on",
    "sequential": "SET enable_seqscan = on; SET enable_sort = on; SET enable_indexscan = off;"
    "SET enable_indexonlyscan = off; SET enable_bitmapscan = off",
    "bitmaps": "SET enable_indexscan = off; SET enable_indexonlyscan = off",
    "parallel": "SET enable_seqscan = on; SET enable_sort = on; SET enable_nestloop = off;"
    "SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0;"
    "SET min_parallel_index_scan_size = 0",
}


@pytest.mark.parametrize("plan", PLANS)
def test_order_and_locks_are_the_same_whatever_the_planner_does(house: House, plan: str) -> None:
    house.connection.execute(PLANS[plan].encode())
    for priority in (10, 20, 100, 150, 200):
        house.add(60, priority=priority)
    house.add(300, age="-1 h", priority=5)
    expected = [id for (id,) in house.app.execute(PLAIN.encode()).fetchall()]
    got: list[UUID] = []
    while ids := house.take(37):
        got += ids
        locks = house.app.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = %s",
            (house.connection.info.backend_pid,),
        ).fetchone()
        assert locks == (len(got),)
    assert got == expected


# ---- against a plain walk


class AtRandom:
    """Adds, moves, locks and unlocks elsewhere, finishes and takes jobs, as a seed says."""

    def __init__(self, house: House, seed: int) -> None:
        self.house, self.chance = house, random.Random(seed)

    def step(self) -> None:
        steps = [self.add, self.add, self.take, self.take, self.take, self.lock, self.unlock, self.finish, self.move]
        self.chance.choice(steps)()
        self.house.clock.now += self.chance.random() / 10

    def claimable(self) -> list[UUID]:
        """By a plain walk."""
        rows = self.house.app.execute(PLAIN.encode()).fetchall()
        return [id for (id,) in rows if id not in self.house.held and id not in self.house.locked_elsewhere]

    def some(self, ids: list[UUID]) -> list[UUID]:
        return self.chance.sample(ids, min(len(ids), self.chance.randint(1, 5)))

    def add(self) -> None:
        age = self.chance.choice(["3 h", "1 h", "1 m", "0", "-1 h"])
        self.house.add(self.chance.randint(1, 20), age, self.chance.choice([1, 100, 100, 100, 200, 300]))

    def move(self) -> None:
        for id in self.some(self.claimable()):
            to = (self.chance.choice([5, 100, 300]), self.chance.choice(["3 h", "30 m", "0"]), id)
            move = "UPDATE magik_jobs SET priority = %s, run_at = now() - %s::interval WHERE id = %s"
            self.house.app.execute(move, to)

    def lock(self) -> None:
        for id in self.some(self.claimable()):
            assert self.house.other.execute(LOCK, (id,)).fetchone() == (True,)
            self.house.locked_elsewhere.append(id)

    def unlock(self) -> None:
        for id in self.some(self.house.locked_elsewhere):
            self.house.other.execute(UNLOCK, (id,))
            self.house.locked_elsewhere.remove(id)

    def finish(self) -> None:
        for id in self.some(self.house.held):
            self.house.app.execute("DELETE FROM magik_jobs WHERE id = %s", (id,))
            self.house.connection.execute(UNLOCK, (id,))
            self.house.held.remove(id)

    def take(self) -> None:
        before = self.claimable()
        ids = self.house.take(self.chance.randint(1, 8))
        assert len(ids) == len(set(ids))
        assert set(ids) <= set(before)

    def expect_nothing_missed(self) -> None:
        """The poll interval has passed."""
        self.house.clock.now += 5.1
        before = self.claimable()
        assert self.house.take(len(before) + 1) == before


@pytest.mark.parametrize("seed", range(5))
def test_within_the_poll_interval_marked_walks_find_what_a_plain_one_does(house: House, seed: int) -> None:
    at_random = AtRandom(house, seed)
    for n in range(1, 61):
        at_random.step()
        if n % 15 == 0:
            at_random.expect_nothing_missed()
