"""A real nginx that serves a folder."""

from __future__ import annotations

import http.client
from pathlib import Path

from tests.servers.base import Server, program

_CONFIG = """
daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
    include /etc/nginx/mime.types;
    log_format short '$status $body_bytes_sent $request_uri';
    access_log {folder}/access.log short;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    gzip on;
    gzip_min_length 1000;
    server {{
        listen 127.0.0.1:{port};
        location / {{ root {root}; }}
        location /dates/ {{ alias {root}/; etag off; }}
    }}
}}
"""
_PROBE = "/no-such-page"


class Nginx(Server):
    """nginx with its own ETags, weak ones where it compresses; under ``/dates/`` without them."""

    name = "nginx"

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root

    def requests(self) -> list[tuple[int, int, str]]:
        """Return status, bytes of the body and path of all that was asked for."""
        text = (self.folder / "access.log").read_text(encoding="utf-8")
        found = (line.split(" ", 2) for line in text.splitlines())
        return [(int(status), int(size), path) for status, size, path in found if path != _PROBE]

    def forget(self) -> None:
        """Forget what was asked for until now."""
        (self.folder / "access.log").write_text("")

    @property
    def url(self) -> str:
        """The URL of the folder, without a slash at the end."""
        return self.given or f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        """Run it in the foreground as one process."""
        return [program("nginx"), "-p", str(self.folder), "-c", str(self.folder / "nginx.conf")]

    def prepare(self) -> None:
        """Write its configuration."""
        text = _CONFIG.format(folder=self.folder, port=self.port, root=self.root)
        (self.folder / "nginx.conf").write_text(text)

    def is_ready(self) -> bool:
        """Ask for a page that is not there."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1)
        try:
            connection.request("GET", _PROBE)
            return connection.getresponse().status == 404
        finally:
            connection.close()
