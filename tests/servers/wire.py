"""Servers of a few lines for what an ordinary web site does not do."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from typing_extensions import Self

PAGE = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Type: text/html\r\n\r\npage"


def head_of(connection: Any) -> bytes:
    """Read the head of a request; empty at the end of the connection."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        some = connection.recv(1)
        if not some:
            return b""
        head += some
    return head


class Wire:
    """Calls *serve* with each connection, which is closed after it, and with its number."""

    def __init__(
        self, serve: Callable[[Any, int], object], certificate: Path | None = None
    ) -> None:
        self._serve = serve
        self._tls = None
        if certificate is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(certificate)
        self.connections = 0
        self.heads: list[bytes] = []
        """For *serve* to note what came."""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._socket.close()

    def url(self, path: str = "/") -> str:
        """Return a URL of this server."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}{path}"

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self.connections += 1
                arguments = (connection, self.connections)
                threading.Thread(target=self._handle, args=arguments, daemon=True).start()

    def _handle(self, connection: Any, number: int) -> None:
        with suppress(OSError), connection:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            self._serve(connection, number)


class Tunnel(Wire):
    """A proxy for HTTPS: does what CONNECT asks for, if it comes with *credentials*."""

    def __init__(self, credentials: bytes = b"") -> None:
        super().__init__(self._connect)
        self._credentials = credentials

    def _connect(self, client: Any, _: int) -> None:
        head = head_of(client)
        self.heads.append(head)
        if self._credentials not in head:
            client.sendall(b"HTTP/1.1 407 Who are you\r\nContent-Length: 0\r\n\r\n")
            return
        host, _, port = head.split()[1].decode().partition(":")
        with socket.create_connection((host, int(port))) as server:
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            back = threading.Thread(target=_copy, args=(server, client), daemon=True)
            back.start()
            _copy(client, server)
            back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
