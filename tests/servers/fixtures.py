"""The fixtures of the servers; ``tests/conftest.py`` takes them in."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.servers.elasticsearch import Elasticsearch
from tests.servers.kafka import Kafka
from tests.servers.mariadb import MariaDB
from tests.servers.mongo import Mongo
from tests.servers.postgres import Postgres
from tests.servers.redis import Redis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Redis]:
    """A Redis that the whole run shares."""
    with Redis() as server:
        yield server


@pytest.fixture
def own_redis(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Redis]]:
    """Give a function that starts a Redis for this test, which may kill it."""
    monkeypatch.delenv("NETSPY_TEST_REDIS_URL", raising=False)
    with ExitStack() as stack:
        yield lambda *options: stack.enter_context(Redis(*options))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """A PostgreSQL that the whole run shares."""
    with Postgres() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDB]:
    """A MariaDB that the whole run shares."""
    with MariaDB() as server:
        yield server


@pytest.fixture(scope="session")
def mongo_server() -> Iterator[Mongo]:
    """A server of MongoDB's protocol that the whole run shares."""
    with Mongo() as server:
        yield server


@pytest.fixture(scope="session")
def elasticsearch_server() -> Iterator[Elasticsearch]:
    """A server of Elasticsearch's API that the whole run shares."""
    with Elasticsearch() as server:
        yield server


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[Kafka]:
    """A server of Kafka's protocol that the whole run shares."""
    with Kafka() as server:
        yield server
