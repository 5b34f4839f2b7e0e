"""A server that speaks MongoDB's protocol."""

from __future__ import annotations

from importlib.util import find_spec

from tests.servers.base import Server, missing, program, scripts


class Mongo(Server):
    """SecantusDB (PyPI), which stores with MongoDB's own engine, WiredTiger; no replica set."""

    name = "mongo"
    durable = True
    """Whether each commit is on disk before it is answered, as a kill must lose nothing."""

    @property
    def url(self) -> str:
        """A mongodb:// URL."""
        return self.given or f"mongodb://127.0.0.1:{self.port}/?directConnection=true"

    def command(self) -> list[str]:
        """Run it with fail points."""
        return [
            program("secantusd-py", folders=(scripts(),)),
            "--host", "127.0.0.1", "--port", str(self.port),
            "--storage-path", str(self.folder / "d"), "--cache-size", "256M",
            *(["--sync-on-commit"] if self.durable else []),
            "--standalone", "--enable-test-commands",
        ]  # fmt: skip

    def is_ready(self) -> bool:
        """Ask it by the driver."""
        if find_spec("pymongo") is None:
            missing("pymongo is not installed")
        from pymongo import MongoClient

        with MongoClient[dict](self.url, serverSelectionTimeoutMS=500) as client:
            return bool(client.admin.command("ping")["ok"])
