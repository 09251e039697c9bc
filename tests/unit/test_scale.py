"""Each of the four shapes is found where it is, and nothing is said of what only looks like it."""

from __future__ import annotations

import importlib
import itertools
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from magik_sa import scale
from magik_sa.job import _declared, declared
from magik_sa.scale.source import Warned

HEAD = """\
import itertools, math, subprocess, time
import time as clock
import urllib.request as web
from time import sleep
from urllib.request import urlopen
from sqlalchemy import select
from sqlalchemy.orm import Mapped
from magik_sa import Job, Retries, Schedule, arg, bulk_enqueue, once
COUNTRIES = ["de", "fr"]
def square(number): return weigh(number) ** 2
def weigh(number): return math.sqrt(number)
def send(number): return urlopen(str(number))
"""
numbers = itertools.count(1)
Found = Callable[[str], list[Warned]]


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Found]:
    """What is said of a module of this source."""
    before = set(declared())
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)

    def find(source: str) -> list[Warned]:
        name = f"scaled_{next(numbers)}"
        (tmp_path / f"{name}.py").write_text(HEAD + textwrap.dedent(source))
        importlib.invalidate_caches()
        importlib.import_module(name)
        return scale.warnings({name: cls for name, cls in declared().items() if name not in before})

    yield find
    for name in set(declared()) - before:
        sys.modules.pop(declared()[name].__module__, None)
        del _declared[name]


def performing(body: str) -> str:
    head = 'class Scaled(Job, policy="system"):\n    items: Mapped[list[int]] = arg(default_factory=list)\n'
    return f"{head}    def perform(self, session):\n{textwrap.indent(textwrap.dedent(body).strip(), ' ' * 8)}\n"


LOOPS = {
    "over arguments": "total = 0\nfor item in self.items:\n    total += item ** 2",
    "over a function's result": "for item in sorted(self.items):\n    math.sqrt(item)",
    "with functions of one's own": "for item in self.items:\n    square(item)",
    "over a query": "total = 0\nfor row in session.scalars(select(Job)):\n    total += row.n\nsession.add(total)",
    "over all of a query": "rows = session.execute(select(Job)).all()\nfor row in rows:\n    weigh(row)",
    "numbered": "for n, row in enumerate(session.scalars(select(Job))):\n    weigh(row.n)",
    "one inside another": "for item in self.items:\n    for other in self.items:\n        max(item, other)",
    "a silent part of more": "found = []\nfor row in session.query(Job):\n    found.append(row.n)\nsend(found)",
}
NO_LOOPS = {
    "each waits": "for item in self.items:\n    send(item)",
    "each asks": "for item in self.items:\n    session.get(Job, item)",
    "each commits": "for row in session.scalars(select(Job)):\n    row.done = True\n    session.commit()",
    "somebody unknown": "for item in self.items:\n    self.unknown(item)",
    "no query, and asks elsewhere": "for item in self.items:\n    weigh(item)\nsession.flush()",
    "a limit": "for row in session.scalars(select(Job).limit(100)):\n    weigh(row.n)",
    "a limit before": "few = select(Job).limit(100)\nfor row in session.scalars(few):\n    weigh(row.n)",
    "a limit two names before": "few = select(Job).limit(9)\nrows = session.scalars(few)\nfor n in rows:\n    weigh(n)",
    "a slice": "for item in self.items[:100]:\n    weigh(item)",
    "a constant": "for country in COUNTRIES:\n    len(country)",
    "a literal": "for n in (1, 2, 3):\n    weigh(n)",
    "a range": "for n in range(1000):\n    weigh(n)",
    "islice": "for n in itertools.islice(self.items, 10):\n    weigh(n)",
    "left early": "for item in self.items:\n    if item > 3:\n        break",
    "stops when told": "for item in self.items:\n    if self.stopping:\n        continue\n    weigh(item)",
    "written with": "with open('x') as out:\n    for item in self.items:\n        out.write(str(item))",
    "silenced": "for item in self.items:  # magik: ignore[loop]\n    weigh(item)",
    "silenced with more": "for item in self.items:  # fine  # magik: ignore[transaction, loop]\n    weigh(item)",
}
TRANSACTIONS = {
    "sleep": "session.get(Job, 1)\ntime.sleep(1)",
    "by another name": "session.get(Job, 1)\nclock.sleep(1)",
    "its own name": "session.get(Job, 1)\nsleep(1)",
    "imported there": "import requests\nrow = session.get(Job, 1)\nrequests.post('http://…', json=row)",
    "HTTP": "session.execute(select(Job))\nurlopen('http://…')",
    "a module's": "session.execute(select(Job))\nweb.urlopen('http://…')",
    "a program": "session.flush()\nsubprocess.run(['true'], check=True)",
    "a client": "import httpx\nsession.flush()\nwith httpx.Client() as client:\n    client.get('http://…')",
    "what a client gave": "import boto3\ns3 = boto3.client('s3')\nsession.flush()\ns3.put_object(Bucket='b')",
    "in one call": "urlopen(session.scalar(select(Job)))",
    "once": "if once(session, self):\n    urlopen('http://…')",
    "bulk_enqueue": "bulk_enqueue(session, [])\nsleep(1)",
    "on one way": "if self.items:\n    session.flush()\nsleep(1)",
    "on the next turn": "for item in self.items:\n    urlopen(str(item))\n    session.flush()",
    "after a failure": "try:\n    session.flush()\nexcept ValueError:\n    sleep(1)",
    "opened again": "session.flush()\nsession.commit()\nsession.flush()\nsleep(1)",
    "asked for all": "for row in session.scalars(select(Job)):\n    urlopen(row.url)",
}
NO_TRANSACTIONS = {
    "slow first": "sleep(1)\nsession.flush()",
    "committed": "session.get(Job, 1)\nsession.commit()\nsleep(1)",
    "rolled back": "session.get(Job, 1)\nsession.rollback()\nsleep(1)",
    "only added": "session.add(self)\nsleep(1)",
    "a client is made": "import boto3, httpx\nsession.flush()\nboto3.client('s3')\nhttpx.Client()",
    "no slow call": "session.flush()\nweigh(3)",
    "left before": "if self.items:\n    session.flush()\n    return\nsleep(1)",
    "raised": "if self.items:\n    session.flush()\n    raise ValueError\nsleep(1)",
    "a transaction of its own": "with session.begin():\n    session.flush()\nsleep(1)",
    "committed on each turn": "for item in self.items:\n    urlopen('…')\n    session.flush()\n    session.commit()",
    "another sleep": "def sleep(n): ...\nsession.flush()\nsleep(1)",
    "called later": "session.flush()\nself.later = lambda: sleep(1)",
    "defined only": "session.flush()\ndef later():\n    sleep(1)",
    "a dict's get": "session.flush()\n{}.get('a')",
    "silenced": "session.flush()\nsleep(1)  # magik: ignore[transaction]",
}


def line_of(source: str, word: str) -> int:
    return 1 + next(n for n, line in enumerate(source.splitlines()) if word in line)


@pytest.mark.parametrize("body", LOOPS.values(), ids=LOOPS.keys())
def test_a_loop_over_what_grows_that_waits_for_nothing_is_warned_of_once(found: Found, body: str) -> None:
    source = performing(body)
    (warned,) = found(source)
    assert (warned.shape, warned.job) == ("loop", "Scaled")
    assert warned.where.endswith(f".py:{line_of(HEAD + source, '        for ')}")


@pytest.mark.parametrize("body", NO_LOOPS.values(), ids=NO_LOOPS.keys())
def test_a_loop_that_waits_is_bounded_or_is_meant_is_not(found: Found, body: str) -> None:
    assert found(performing(body)) == []


@pytest.mark.parametrize("body", TRANSACTIONS.values(), ids=TRANSACTIONS.keys())
def test_waiting_with_a_transaction_open_is_warned_of_once(found: Found, body: str) -> None:
    (warned,) = found(performing(body))
    assert (warned.shape, warned.job) == ("transaction", "Scaled")


@pytest.mark.parametrize("body", NO_TRANSACTIONS.values(), ids=NO_TRANSACTIONS.keys())
def test_waiting_without_one_is_not(found: Found, body: str) -> None:
    assert found(performing(body)) == []


def job(name: str, queue: str, comment: str = "", body: str = "") -> str:
    head = f'class {name}(Job, policy="system", queue="{queue}"):{comment}\n'
    return f"{head}{textwrap.indent(body, ' ' * 4)}    def perform(self, session): ...\n"


def test_a_queue_for_each_class_is_warned_of_once(found: Found) -> None:
    (warned,) = found(job("Scaled", "scaled") + job("Other", "other") + job("Third", "third"))
    assert (warned.shape, warned.job) == ("queues", "Scaled")
    assert "other, scaled, third" in warned.said


@pytest.mark.parametrize(
    "queues",
    [("a", "b"), ("a", "b", "b"), ("a", "b", "default"), ("default", "default", "default"), ("a", "b", "a", "c")],
    ids=str,
)
def test_queues_that_are_shared_few_or_the_default_one_are_not(found: Found, queues: tuple[str, ...]) -> None:
    assert found("".join(job(f"Scaled{n}", queue) for n, queue in enumerate(queues))) == []


def test_a_class_whose_own_queue_is_meant_does_not_count(found: Found) -> None:
    meant = job("Scaled", "scaled", "  # magik: ignore[queues]")
    assert found(meant + job("Other", "other") + job("Third", "third")) == []


DENSE = {
    "every": 'schedule = Schedule(every="10s")\nretries = Retries(timeout="30s")\n',
    "cron": 'schedule = Schedule(cron="*/5 8-9 * * *", zone="UTC")\nretries = Retries(timeout="6m")\n',
}
SPARSE = {
    "no timeout": 'schedule = Schedule(every="10s")\n',
    "as long": 'schedule = Schedule(every="30s")\nretries = Retries(timeout="30s")\n',
    "a key": 'schedule = Schedule(every="10s")\nretries = Retries(timeout="30s")\nidempotent_by = "n"\n'
    "n: Mapped[int] = arg(default=1)\n",
    "cron": 'schedule = Schedule(cron="*/5 * * * *", zone="UTC")\nretries = Retries(timeout="5m")\n',
    "silenced": 'schedule = Schedule(every="10s")  # magik: ignore[schedule]\nretries = Retries(timeout="30s")\n',
}


@pytest.mark.parametrize("body", DENSE.values(), ids=DENSE.keys())
def test_a_schedule_that_ticks_before_its_run_has_to_be_over_is_warned_of(found: Found, body: str) -> None:
    source = job("Scaled", "default", body=body)
    (warned,) = found(source)
    assert (warned.shape, warned.job) == ("schedule", "Scaled")
    assert warned.where.endswith(f":{line_of(HEAD + source, 'schedule =')}")


@pytest.mark.parametrize("body", SPARSE.values(), ids=SPARSE.keys())
def test_a_schedule_that_leaves_time_or_is_meant_is_not(found: Found, body: str) -> None:
    assert found(job("Scaled", "default", body=body)) == []


def test_what_cannot_be_read_is_passed_over(found: Found) -> None:
    assert found("exec(\"class Scaled(Job, policy='system'):\\n def perform(self, session): time.sleep(1)\")") == []
