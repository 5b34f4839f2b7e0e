"""The pages of the documentation, and how their examples are run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "README.zh.md",
    ROOT / "CHANGELOG.md",
    ROOT / "example_project" / "README.md",
    *sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts),
]
SHOP = "http://127.0.0.1:8000/"

BLOCK = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: A block that is a file; ``# settings.py`` is the reader's own, of which the block is a part.
FILE = re.compile(r"# (?!settings\.py)([\w/]+\.py)\n")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def name_of(page: Path) -> str:
    """Return a page's path from the top of the repository."""
    return page.relative_to(ROOT).as_posix()


def all_blocks(page: Path) -> list[tuple[str, str]]:
    """Return language and text of the code blocks of a page, in their order."""
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def blocks(page: Path, language: str) -> list[str]:
    """Return the code blocks of a page in one language."""
    return [body for kind, body in all_blocks(page) if kind == language]


def write_files(page: str, folder: Path, url: str = SHOP) -> None:
    """Write the blocks that begin with a file's name; they crawl *url*."""
    for body in blocks(ROOT / page, "python"):
        if match := FILE.match(body):
            (folder / match[1]).write_text(body.replace(SHOP, url), encoding="utf-8")


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start Python in *folder*."""
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    return subprocess.Popen(
        [sys.executable, *arguments], cwd=folder, env=environment, text=True, encoding="utf-8",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run Python in *folder*; return the exit status and all that it wrote."""
    with start(folder, *arguments) as process:
        output, _ = process.communicate(timeout=60)
    return process.returncode, output


def dumped(path: Path) -> list[dict[str, object]]:
    """Return the lines of a dump file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
