"""A connection that breaks at a chosen moment, or is slow."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


class Proxy:
    """Stands before a server, and cuts a connection, or holds up its answers, on demand.

    Once ``cut_after`` is set, the first connection whose client sends these bytes is cut: the
    server has got what was sent, and its answer does not arrive. ``delay`` is in seconds, for each
    piece that the server sends.
    """

    def __init__(self, port: int) -> None:
        self.cut_after: bytes | None = None
        self.delay = 0.0
        self._target = port
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._socket.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._pump, args=(*pair, client), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if source is client and self.cut_after is not None and self.cut_after in data:
                    self.cut_after = None
                    # The server's answer has nowhere to go from here on.
                    client.shutdown(socket.SHUT_RDWR)
                    target.sendall(data)
                    # Time to work on it before it sees that nobody is there.
                    threading.Event().wait(0.3)
                    break
                if source is not client and self.delay:
                    time.sleep(self.delay)
                target.sendall(data)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
