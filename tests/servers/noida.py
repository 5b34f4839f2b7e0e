"""noida-db (PyPI): one program that speaks the protocols of several servers."""

from __future__ import annotations

import importlib.resources
from importlib.util import find_spec
from typing import ClassVar

from tests.servers.base import Server, missing


class Noida(Server):
    """One service of noida-db."""

    service: ClassVar[str]
    settling: ClassVar[float] = 1.5
    """Seconds until what it acknowledged survives a kill: it writes to disk later. (A vendor's
    server does so first.)"""

    def command(self) -> list[str]:
        """Run the one service in the foreground."""
        if find_spec("noida_db") is None:
            missing("noida-db is not installed")
        binary = importlib.resources.files("noida_db") / "noida-db"
        return [
            str(binary), "start", "--data-dir", str(self.folder / "d"), "--host", "127.0.0.1",
            "--only", self.service, f"--{self.service}-port", str(self.port),
        ]  # fmt: skip

    def prepare(self) -> None:
        """Installers may drop the right to run it."""
        if find_spec("noida_db") is None:
            missing("noida-db is not installed")
        with importlib.resources.as_file(
            importlib.resources.files("noida_db") / "noida-db"
        ) as binary:
            if not binary.stat().st_mode & 0o100:
                binary.chmod(0o755)
