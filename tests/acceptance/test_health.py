"""What a supervisor is told of a worker, and that no question harms it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from sqlalchemy import Engine, make_url
from sqlalchemy.orm import Session as OrmSession

from magik_sa.worker.health import listen
from tests.jobs.lasting import Lasting
from tests.tools.effects import Effects
from tests.tools.process import held
from tests.tools.proxy import Proxy
from tests.tools.sessions import pids, terminate
from tests.tools.waiting import until
from tests.tools.workers import WorkerProcess

LASTING = "tests.jobs.lasting"
FINE = (200, {"ready": True, "why": None})
SILENT = (503, {"ready": False, "why": "the database does not answer"})


def started(stack: ExitStack, database: str, **options: Any) -> tuple[WorkerProcess, int]:
    """A worker that is ready, and its port."""
    options = {"health_port": 0, "poll_interval": "1s", "concurrency": 2, **options}
    worker = stack.enter_context(WorkerProcess(database, LASTING, **options)).wait_ready()
    return worker, int(worker.wait_log(r"health=127\.0\.0\.1:(\d+)").group(1))


def ask(port: int, path: str, method: str = "GET") -> tuple[int, Any]:
    """The code and the document."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    with contextlib.closing(connection):
        connection.request(method, path)
        answer = connection.getresponse()
        body = answer.read()
        assert answer.getheader("Content-Type") == "application/json"
        return answer.status, json.loads(body) if body else None


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_an_idle_worker_lives_and_is_ready_and_nothing_else_is_there(stack: ExitStack, database: str) -> None:
    worker, port = started(stack, database)
    code, told = ask(port, "/live")
    assert (code, told["live"], told["dead"], told["threads"] >= 4) == (200, True, [], True)
    until(lambda: ask(port, "/ready?x=1") == FINE)
    assert ask(port, "/ready", "HEAD") == (200, None)
    for path, method in [("/", "GET"), ("/live/", "GET"), ("/live", "POST"), ("/ready", "DELETE"), ("/etc", "HEAD")]:
        assert ask(port, path, method)[0] == 404
    assert (make_url(database).password or "none") not in json.dumps(ask(port, "/live"))
    assert worker.terminate() == 0
    assert "password" not in worker.stderr()


def test_a_worker_that_drains_lives_and_is_not_ready(
    stack: ExitStack, database: str, engine: Engine, effects: Effects
) -> None:
    with OrmSession(engine) as session, session.begin():
        session.add(Lasting(seconds=60))
    worker, port = started(stack, database, shutdown_timeout="1h")
    until(effects.count, what="the job runs")
    assert ask(port, "/ready") == FINE
    worker.signal(signal.SIGTERM)
    worker.wait_log("event=draining")
    until(lambda: ask(port, "/ready") == (503, {"ready": False, "why": "draining"}))
    assert ask(port, "/live")[0] == 200
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 3


def test_a_worker_lives_while_its_locking_connection_is_lost_and_is_ready_when_it_is_back(
    stack: ExitStack, database: str, dsn: str
) -> None:
    url = make_url(database)
    proxy = stack.enter_context(Proxy(url.host or "", url.port or 0))
    worker, port = started(stack, url.set(port=proxy.port).render_as_string(hide_password=False))
    told: list[int] = []
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            told.append(ask(port, "/live")[0])

    watch = threading.Thread(target=look)
    watch.start()
    try:
        terminate(dsn, f"{worker.app_name} locker")
        worker.wait_log("event=locking_connection_back")
        until(lambda: ask(port, "/ready") == FINE, what="ready after a short reconnect")
        proxy.refuse()
        terminate(dsn, f"{worker.app_name} locker")
        until(lambda: ask(port, "/ready") == (503, {"ready": False, "why": "no locking connection"}))
        worker.wait_log("event=database_unreachable")
        proxy.accept()
        until(lambda: ask(port, "/ready") == FINE, 15, what="ready when the server is back")
    finally:
        over.set()
        watch.join()
    assert set(told) == {200}
    assert worker.terminate() == 0


@pytest.mark.parametrize("how", ["silent proxy", "stopped server process"])
def test_a_database_that_does_not_answer_is_told_of_and_the_worker_lives(
    stack: ExitStack, database: str, dsn: str, how: str, server: Any
) -> None:
    if how == "stopped server process" and server.cluster is None:
        pytest.skip("the server of MAGIK_TEST_DATABASE_URL may be elsewhere")
    url = make_url(database)
    proxy = stack.enter_context(Proxy(url.host or "", url.port or 0))
    worker, port = started(stack, url.set(port=proxy.port).render_as_string(hide_password=False))
    until(lambda: ask(port, "/ready") == FINE)
    (backend,) = until(lambda: only(pids(dsn, f"{worker.app_name} locker")), what="that of the start's checks is gone")
    if how == "silent proxy":
        proxy.silence()
    else:
        os.kill(backend, signal.SIGSTOP)
        stack.callback(go_on, backend)
    until(lambda: ask(port, "/ready") == SILENT, 8, what="not ready: a poll interval, the limit, and a busy machine")
    assert ask(port, "/live")[0] == 200
    if how == "silent proxy":
        proxy.resume()
    else:
        go_on(backend)
    until(lambda: ask(port, "/ready") == FINE, 15, what="ready again")
    assert worker.terminate() == 0


def only(found: list[int]) -> list[int] | None:
    """Where there is one alone."""
    return found if len(found) == 1 else None


def go_on(backend: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(backend, signal.SIGCONT)


@pytest.mark.parametrize("place", [{}, {"health_host": "192.0.2.1"}, {"health_host": "nowhere.invalid"}])
def test_a_port_that_cannot_be_had_refuses_the_start_with_all_else_that_is_wrong(
    database: str, place: dict[str, str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with WorkerProcess(database, "nowhere", health_port=port, **place) as worker:  # type: ignore[arg-type]
            assert worker.wait() == 2
    codes = [line.split(":")[0] for line in worker.stderr().splitlines()]
    assert codes == ["MAGIK_MODULE_IMPORT_FAILED", "MAGIK_HEALTH_UNAVAILABLE"]
    assert str(port) in worker.stderr()


ODD = {
    "garbage": b"\x00\xff\x16\x03\x01" * 50 + b"\r\n\r\n",
    "an empty request": b"\r\n\r\n",
    "a huge header": b"GET /live HTTP/1.1\r\nX: " + b"x" * 100_000,
    "a huge path": b"GET /" + b"x" * 5_000 + b" HTTP/1.1\r\n\r\n",
    "another protocol": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no path": b"GET  HTTP/1.1\r\n\r\n",
    "half a request": b"GET /live HT",
}


def test_odd_requests_harm_neither_the_worker_nor_the_answers(
    stack: ExitStack, database: str, engine: Engine, effects: Effects
) -> None:
    worker, port = started(stack, database)
    until(lambda: ask(port, "/ready") == FINE)
    before = held(worker.pid)
    for data in ODD.values():
        sent(port, data)
    slow = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(200)]
    for end in slow:
        with contextlib.suppress(OSError):  # the oldest are closed already
            end.sendall(b"GET /live HTTP/1.1\r\nX-A")
    assert ask(port, "/live")[0] == 200
    assert ask(port, "/ready") == FINE
    with OrmSession(engine) as session, session.begin():
        session.add(Lasting())
    until(effects.count, what="jobs run")
    for end in slow:
        closed(end)
    until(lambda: held(worker.pid).descriptors <= before.descriptors + 3, what="connections are let go")
    assert held(worker.pid).threads <= before.threads
    assert worker.terminate() == 0
    assert not re.search("Traceback|never retrieved", worker.stderr())


def sent(port: int, data: bytes) -> bytes:
    """What comes back, within the limit, for these bytes."""
    with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port), 5) as end:
        end.sendall(data)
        answer = end.recv(100)
        assert not answer or re.match(rb"HTTP/1.1 (400|404) ", answer), (data[:30], answer)
        return answer
    return b""


def closed(end: socket.socket) -> None:
    """By the worker, in its own time."""
    end.settimeout(10)
    with contextlib.suppress(ConnectionError):
        assert end.recv(100) == b""


def test_a_child_that_a_job_leaves_behind_does_not_keep_the_port() -> None:
    """The socket is given up in a forked child, as connections are."""
    ours, childs = socket.socketpair()
    with ours, childs, contextlib.closing(listen("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        if not (child := os.fork()):
            ours.close()
            childs.sendall(b"here")
            childs.recv(1)
            os._exit(0)
        assert ours.recv(4) == b"here"
        listening.close()
        listen("127.0.0.1", port).close()
    assert os.waitpid(child, 0)[1] == 0
