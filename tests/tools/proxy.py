"""A TCP proxy on the loopback between a program and the server, that can be told to misbehave."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER with no time: close sends RST and drops what was not sent


class Link:
    """One proxied connection: two sockets and a thread for each direction."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket, *, silent: bool) -> None:
        self.proxy, self.client, self.server = proxy, client, server
        self.passing = threading.Event()
        self.closed = threading.Event()
        if not silent:
            self.passing.set()
        for source, target in ((client, server), (server, client)):
            threading.Thread(target=self._pump, args=(source, target), name="proxy-pump", daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(65536):
                self._forward(target, chunk)
            self.passing.wait()  # an end of the stream is as lost as the bytes while the network is silent
        self.close()

    def _forward(self, target: socket.socket, chunk: bytes) -> None:
        self.proxy.seen += len(chunk)
        if self.proxy.latency:
            time.sleep(self.proxy.latency)
        self.passing.wait()
        self.proxy.passes(chunk)
        target.sendall(chunk)

    def close(self, *, reset: bool = False) -> None:
        """Close both ends, orderly or with a reset."""
        if self.closed.is_set():
            return
        self.closed.set()
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                if reset:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                # wakes the thread in recv(), whose call would keep the socket open; SHUT_RD sends nothing
                end.shutdown(socket.SHUT_RD if reset else socket.SHUT_RDWR)
            end.close()
        self.passing.set()


class Proxy:
    """``with Proxy(host, port) as proxy:`` connect to ``proxy.port``; it passes everything until told otherwise.

    * `cut` closes what is open, with a reset unless told otherwise; new connections pass.
    * `refuse` refuses new connections (nobody listens); what is open goes on. `accept` ends it, on the same port.
    * `silence` holds back every byte on what is open, and on new connections with ``new=True``; nothing is closed,
      not even when one end closes. `resume` ends it: what was held back arrives, as after a mended network.
      `silence_after` does so of itself, with these bytes, which are the last to pass.
    * `delay` makes every chunk late.
    """

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        self.latency = 0.0
        self.seen = 0
        self.port = 0
        self._silent_for_new = False
        self._last_words: tuple[bytes, bool] | None = None
        self._lock = threading.Lock()
        self._links: list[Link] = []
        self._listener: socket.socket | None = None

    def __enter__(self) -> Self:
        self.accept()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.refuse()
        self.cut()

    def accept(self) -> None:
        """Take new connections; harmless when it does already."""
        if self._listener is not None:
            return
        listener = socket.create_server((HOST, self.port), backlog=64)
        self.port = listener.getsockname()[1]
        self._listener = listener
        threading.Thread(target=self._serve, args=(listener,), name="proxy-accept", daemon=True).start()

    def refuse(self) -> None:
        """Refuse new connections."""
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept()
            listener.close()

    def cut(self, *, reset: bool = True) -> int:
        """Close every open connection at both ends; returns how many there were."""
        links = self._open_links()
        for link in links:
            link.close(reset=reset)
        return len(links)

    def silence(self, *, new: bool = False) -> int:
        """Forward nothing more on open connections, without closing them; returns how many there are."""
        self._silent_for_new = new
        links = self._open_links()
        for link in links:
            link.passing.clear()
        return len(links)

    def silence_after(self, words: bytes, *, new: bool = False) -> None:
        """Fall silent with the next chunk that has these bytes in it, which is the last to pass."""
        self._last_words = words, new

    def passes(self, chunk: bytes) -> None:
        """A link tells of each chunk before it goes: the answer to the last words is held back, however soon it is."""
        if self._last_words is not None and self._last_words[0] in chunk:
            new, self._last_words = self._last_words[1], None
            self.silence(new=new)

    def resume(self) -> None:
        """Forward again, what was held back first."""
        self._silent_for_new = False
        for link in self._open_links():
            link.passing.set()

    def delay(self, seconds: float) -> None:
        """Let every chunk arrive so much later."""
        self.latency = seconds

    @property
    def open(self) -> int:
        """How many connections are open."""
        return len(self._open_links())

    def _open_links(self) -> list[Link]:
        with self._lock:
            self._links = [link for link in self._links if not link.closed.is_set()]
            return list(self._links)

    def _serve(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # closed: no more to come
            while True:
                client, _ = listener.accept()
                self._connect(listener, client)

    def _connect(self, listener: socket.socket, client: socket.socket) -> None:
        """It is open from now on, unless nobody is let in any more: then a `cut` that follows would not know of it."""
        try:
            server = socket.create_connection(self.target, timeout=10)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            if self._listener is listener:
                self._links.append(Link(self, client, server, silent=self._silent_for_new))
                return
        for end in (client, server):
            end.close()
