"""A real Redis."""

from __future__ import annotations

import socket

from tests.servers.base import Server, program


class Redis(Server):
    """``redis-server``, which keeps nothing on disk; *options* are further arguments of it."""

    name = "redis"

    def __init__(self, *options: str) -> None:
        super().__init__()
        self.extra = options

    @property
    def url(self) -> str:
        """A redis:// URL."""
        return self.given or f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> list[str]:
        """Run it without snapshots."""
        return [
            program("redis-server"), "--port", str(self.port), "--bind", "127.0.0.1",
            "--save", "", "--appendonly", "no", "--dir", str(self.folder), *self.extra,
        ]  # fmt: skip

    def is_ready(self) -> bool:
        """Ask it by its own protocol, so that no client is needed; it may want a password."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=1) as sock:
            sock.sendall(b"PING\r\n")
            return sock.recv(16).startswith((b"+PONG", b"-NOAUTH"))
