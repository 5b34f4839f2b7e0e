"""Runs all checks: ``python3 tests/run.py``.

The first time it makes a virtual environment with tox (``.tox/runner``); tox makes those of the
checks: lint, types, the documentation site, and the tests on the oldest Scrapy and on the newest.
Of the Pythons from 3.10 to 3.13 that are on this machine the oldest Scrapy gets the oldest, the
newest the newest. ``tests/run.py -- -k dumps`` hands what follows ``--`` to pytest and leaves the
other checks out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

if sys.version_info < (3, 10):  # noqa: UP036 - said here, as pip would say it at length
    sys.exit(f"Python 3.10 or newer is needed; this is {sys.version.split()[0]}")

# Not the folder of this file: it has a module called site.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from tools.bootstrap import ROOT, environment  # noqa: E402

PYTHONS = ("3.10", "3.11", "3.12", "3.13")

#: Debian's packages that tests use, each with a program or a folder of it.
SERVERS = {
    "chromium": "chromium",
    "mariadb-server": "mariadbd",
    "nginx-light": "nginx",
    "postgresql": "postgres",
    "python3-doc": "/usr/share/doc/python3-doc/html",
    "redis-server": "redis-server",
}

_ENVIRONMENT = re.compile(r"(\S+): commands\[\d+\]> pytest")
_CLOSING = re.compile(r"=+ (?:no tests ran|\d+ (?:passed|failed|error|skipped|deselected)).*=+")


def main() -> int:
    """Run the command; the exit status is tox's."""
    python = environment(ROOT / ".tox" / "runner", "tox>=4.20,<5")
    pythons = present_pythons()
    posargs = sys.argv[1:]
    chosen = tests_to_run(list(pythons))
    if not posargs:
        chosen = ["lint", "types", "docs", *chosen]
    environment_variables = dict(os.environ)
    if servers_are_there():
        environment_variables.setdefault("NETSPY_TEST_SERVERS_REQUIRED", "1")
    print(f"Running {', '.join(chosen)}: each is shown once it is done", flush=True)
    # Two at a time, as the tests of waits mostly wait, and must not wait for a processor.
    tox = [str(python), "-m", "tox", "run-parallel", "--parallel", "2", "--parallel-no-spinner"]
    return run(
        [*tox, "-e", ",".join(chosen), "--discover", *pythons.values(), *posargs],
        environment_variables,
    )


def servers_are_there() -> bool:
    """Tell whether the tests have all their servers; root gets them by apt where there is one.

    CI goes on in any case, and fails in the tests of what is missing.
    """
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/bin"])
    absent = [
        package
        for package, name in SERVERS.items()
        if not (
            shutil.which(name, path=path)
            or any(Path("/usr/lib").glob(f"*/*/bin/{name}"))
            or Path(name).is_dir()
        )
    ]
    if absent and os.getuid() == 0 and shutil.which("apt-get"):
        print(f"Installing {', '.join(absent)} by apt-get", flush=True)
        variables = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *absent]
        for command in (["apt-get", "update", "-qq"], install):
            subprocess.run(command, check=False, stdout=subprocess.DEVNULL, env=variables)
    elif absent and not os.environ.get("CI"):
        print(f"Not installed: {', '.join(absent)}; tests that need them are skipped", flush=True)
        return False
    return True


def run(command: list[str], variables: dict[str, str]) -> int:
    """Run tox; show its output, and once more at the end how each pytest closed."""
    closings: dict[str, str] = {}
    running = ""
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        encoding="utf-8", errors="replace", env=variables,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if match := _ENVIRONMENT.match(line):
                running = match[1]
            elif _CLOSING.fullmatch(line.strip()):
                closings[running] = line.strip()
    print()
    # What went wrong comes last, where it is read.
    last = ""
    for name, last in sorted(closings.items(), key=lambda pair: not _is_good(pair[1])):
        print(f"{name}: {last.strip('= ')}")
    print(last)
    return process.returncode


def _is_good(closing: str) -> bool:
    return " passed" in closing and not re.search(r"\d+ (failed|error)", closing)


def tests_to_run(pythons: list[str]) -> list[str]:
    """Return the tox environments of the tests: the oldest Scrapy and the newest.

    The oldest Scrapy gets the oldest Python, the newest the newest. What is between is left to
    ``tox run -e py311-between`` and ``tox run -e py312-newest``: a third run would take as long
    again as these two, side by side.
    """
    names = [f"py{version.replace('.', '')}" for version in pythons]
    return [f"{names[0]}-oldest", f"{names[-1]}-newest"]


def present_pythons() -> dict[str, str]:
    """Return the Pythons to test with, as version and path; tell which are not there."""
    found = {}
    for version in PYTHONS:
        path = next((one for one in candidates(version) if runs(one, version)), None)
        if path is None:
            print(f"Python {version} is not on this machine: its tests are left out", flush=True)
        else:
            found[version] = str(path)
    mine = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return found or {mine: sys.executable}


def candidates(version: str) -> list[Path]:
    """Return where Python *version* may be: this one, the PATH, pyenv's versions."""
    folders = [Path(one) for one in os.environ.get("PATH", "").split(os.pathsep) if one]
    found = [folder / f"python{version}" for folder in folders]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found += sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)
    return [Path(sys.executable), *found]


def runs(python: Path, version: str) -> bool:
    """Tell whether *python* starts and is of *version*: a pyenv shim may exist and do neither."""
    command = [str(python), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        answer = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0 and answer.stdout.strip() == version


if __name__ == "__main__":
    sys.exit(main())
