"""Each server starts, is killed, comes back, and is gone at the end."""

from __future__ import annotations

import socket

import pytest

from tests.servers.base import Server
from tests.servers.elasticsearch import Elasticsearch
from tests.servers.kafka import Kafka
from tests.servers.mariadb import MariaDB
from tests.servers.mongo import Mongo
from tests.servers.postgres import Postgres
from tests.servers.redis import Redis


@pytest.mark.parametrize("kind", [MariaDB, Postgres, Redis, Mongo, Elasticsearch, Kafka])
def test_life(kind: type[Server]) -> None:
    """A server answers after its start and after a kill, and not after its end."""
    with kind() as server:
        if server.given is not None:
            pytest.skip("a server that was given is not killed")
        server.kill()
        server.start()
        assert server.is_ready()
        port, folder = server.port, server.folder
    with socket.socket() as sock:
        assert sock.connect_ex(("127.0.0.1", port)) != 0
    assert not folder.exists()
