"""``GET /live`` and ``GET /ready`` for whoever supervises the worker, by a thread of their own.

Whatever is sent there harms nobody: a request has two seconds and 8 KiB, and of those that wait at once the oldest
goes. Nothing that is asked waits for the worker, its database, or a lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from ..errors import BootError
from ..forked import keep_from_children

LONGEST: Final = 8192  # bytes of a request
PATIENCE: Final = 2.0  # seconds for one, from its connection to its answer
MOST: Final = 32  # connections at once
REASONS: Final = {200: "OK", 400: "Bad Request", 404: "Not Found", 503: "Service Unavailable"}

Answer = tuple[bool, Mapping[str, Any]]  # whether all is well, and what is to be said of it


class Listening(socket.socket):
    """A socket that a forked child gives up, as it does connections: the port is free when the worker ends."""

    @property
    def closed(self) -> bool:
        """Whether it is open no more."""
        return self.fileno() < 0


def listen(host: str, port: int) -> Listening:
    """Raises `BootError` ``MAGIK_HEALTH_UNAVAILABLE`` where that cannot be, such as at a port in use."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        listening = Listening(fileno=socket.create_server((host, port), family=family, backlog=128).detach())
    except (OSError, UnicodeError) as error:
        what = f"The worker cannot listen at {host!r}, port {port}: {type(error).__name__}: {error}."
        raise BootError("MAGIK_HEALTH_UNAVAILABLE", what, field="health-port") from error
    keep_from_children(listening)
    return listening


class Health(threading.Thread):
    """The thread `magik-health`. `questions` by their paths; each is asked in it, and has to answer at once."""

    def __init__(self, listening: Listening, questions: Mapping[str, Callable[[], Answer]]) -> None:
        super().__init__(name="magik-health", daemon=True)
        self._listening, self._questions = listening, questions
        self._open: dict[asyncio.Task[None], None] = {}  # in the order in which they came
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self.address: str = "{}:{}".format(*listening.getsockname()[:2])

    def run(self) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._serve())

    def stop(self) -> None:
        """Answer nobody any more, and return when the port is free."""
        with contextlib.suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(self._over.set)
        self.join()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._admit, sock=self._listening, limit=LONGEST)
        await self._over.wait()
        server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request; where there are too many the one that has waited for the longest is dropped."""
        task = asyncio.current_task()
        assert task is not None
        if len(self._open) >= MOST:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.cancel()
        self._open[task] = None
        try:
            async with asyncio.timeout(PATIENCE):
                writer.write(self._answered(await _request(reader)))
                await writer.drain()
        except (OSError, TimeoutError, EOFError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._open.pop(task, None)
            writer.close()

    def _answered(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b" ")
        path, _, version = rest.partition(b" ")
        if not version.startswith(b"HTTP/1."):
            return _response(400, {"error": "no request"})
        question = self._questions.get(path.partition(b"?")[0].decode("latin-1"))
        if question is None or method not in (b"GET", b"HEAD"):
            return _response(404, {"error": "GET /live or GET /ready"})
        well, said = question()
        return _response(200 if well else 503, said, body=method == b"GET")


async def _request(reader: asyncio.StreamReader) -> bytes:
    """The first line of a request, when its head has come; nothing where that is too long to be one."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        return b""
    return head.partition(b"\r\n")[0]


def _response(code: int, said: Mapping[str, Any], *, body: bool = True) -> bytes:
    text = json.dumps(said).encode() + b"\n"
    head = (
        f"HTTP/1.1 {code} {REASONS[code]}\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n"
        "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (text if body else b"")
