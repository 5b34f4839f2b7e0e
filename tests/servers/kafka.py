"""A server that speaks Kafka's protocol."""

from __future__ import annotations

from importlib.util import find_spec

from tests.servers.base import missing
from tests.servers.noida import Noida


class Kafka(Noida):
    """The Kafka broker of noida-db."""

    name = "kafka"
    service = "kafka"

    @property
    def url(self) -> str:
        """An address as ``bootstrap.servers`` takes it."""
        return self.given or f"127.0.0.1:{self.port}"

    def is_ready(self) -> bool:
        """Ask for its brokers."""
        if find_spec("confluent_kafka") is None:
            missing("confluent-kafka is not installed")
        from confluent_kafka.admin import AdminClient

        client = AdminClient({"bootstrap.servers": self.url, "log_level": 0})
        return bool(client.list_topics(timeout=2).brokers)
