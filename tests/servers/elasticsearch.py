"""A server that speaks Elasticsearch's API."""

from __future__ import annotations

import http.client

from tests.servers.noida import Noida


class Elasticsearch(Noida):
    """The Elasticsearch API of noida-db, which says that it is an 8.15."""

    name = "elasticsearch"
    service = "elasticsearch"

    @property
    def url(self) -> str:
        """An http:// URL."""
        return self.given or f"http://127.0.0.1:{self.port}"

    def is_ready(self) -> bool:
        """Ask for its name, as the client does first."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", "/")
            answer = connection.getresponse()
            return answer.status == 200 and bool(answer.getheader("X-Elastic-Product"))
        finally:
            connection.close()
