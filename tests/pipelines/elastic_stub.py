"""A small HTTP server in Elasticsearch's place, for answers that a healthy one does not give."""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self


class ElasticStub:
    """Answers bulk requests as it is told, first by *answers* in turn, then by storing them."""

    def __init__(self, *answers: Any, certificate: Path | None = None) -> None:
        self.answers = list(answers)
        self.stored: dict[str, dict[str, Any]] = {}
        """Documents by ``_id``."""
        self.requests: list[int] = []
        """How many operations each bulk request had."""
        self.headers: list[dict[str, str]] = []
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 1 << 16  # head and body in one packet

            def log_message(self, *_: Any) -> None:
                pass

            def do_PUT(self) -> None:
                stub.headers.append({name.lower(): one for name, one in self.headers.items()})
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                operations = parse(body)
                stub.requests.append(len(operations))
                answer = stub.answers.pop(0) if stub.answers else stub.store
                status, data = answer(operations)
                text = json.dumps(data).encode()
                self.send_response(status)
                self.send_header("X-Elastic-Product", "Elasticsearch")
                self.send_header("Content-Type", "application/vnd.elasticsearch+json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_POST = do_PUT  # noqa: N815 - http.server calls it so

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            scheme = "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def store(self, operations: list[Any]) -> tuple[int, Any]:
        """Do as a healthy server."""
        items = []
        for kind, target, document in operations:
            known = target["_id"] in self.stored
            if kind == "create" and known:
                items.append(failure(kind, target, 409, "version_conflict_engine_exception"))
                continue
            self.stored[target["_id"]] = document
            items.append({kind: {**target, "status": 200 if known else 201}})
        return 200, {"errors": False, "items": items}


def parse(body: str) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Return the operations of a bulk request."""
    lines = [json.loads(line) for line in body.splitlines()]
    found = []
    for action, document in zip(lines[::2], lines[1::2], strict=True):
        ((kind, target),) = action.items()
        found.append((kind, target, document))
    return found


def failure(kind: str, target: dict[str, Any], status: int, name: str) -> dict[str, Any]:
    """Return what a bulk answer says of a document that failed."""
    return {kind: {**target, "status": status, "error": {"type": name, "reason": "as told"}}}


def whole(status: int, name: str = "as_told_exception") -> Any:
    """Return an answer that refuses the whole request."""
    return lambda _: (status, {"error": {"type": name, "reason": "as told"}, "status": status})


def make_certificate(path: Path) -> None:
    """Write a key and a certificate for 127.0.0.1 that nobody signed."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.timezone.utc)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
