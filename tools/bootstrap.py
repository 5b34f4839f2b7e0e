"""A virtual environment for a script that is run by whatever ``python3`` there is.

Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_SCRIPTS = "Scripts" if os.name == "nt" else "bin"
_STAMP = "installed-by-bootstrap"


def environment(folder: Path, *requirements: str) -> Path:
    """Return the Python of a virtual environment in *folder* that has *requirements*.

    It is made, or brought up to date, only if it has to be: a stamp says what was installed. Ends
    the program with one sentence if that cannot be done.
    """
    python = folder / _SCRIPTS / "python"
    stamp = folder / _STAMP
    wanted = _fingerprint(requirements)
    usable = _runs(python) and (not stamp.exists() or stamp.read_text().startswith(str(ROOT)))
    if usable and stamp.exists() and stamp.read_text() == wanted:
        return python
    if not usable:
        print(f"Making {_shown(folder)} with Python {sys.version.split()[0]}", flush=True)
        _make(folder)
    print(f"Installing {', '.join(map(_name, requirements))} into {_shown(folder)}", flush=True)
    install = [str(python), "-m", "pip", "install", "--quiet", *requirements]
    if subprocess.run(install, check=False, cwd=ROOT).returncode:
        sys.exit("pip failed, see above; nothing was run")
    stamp.write_text(wanted)
    return python


def _make(folder: Path) -> None:
    if importlib.util.find_spec("ensurepip") is None:
        sys.exit(
            f"{sys.executable} has no ensurepip, which a virtual environment needs. "
            "On Debian and Ubuntu: apt-get install python3-venv"
        )
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)


def _runs(python: Path) -> bool:
    """Tell whether *python* is one that can be used: it exists, starts, has pip, is not too old."""
    check = "import pip, sys; sys.exit(sys.version_info < (3, 10))"
    try:
        return subprocess.run([str(python), "-c", check], check=False).returncode == 0
    except OSError:
        return False


def _fingerprint(requirements: tuple[str, ...]) -> str:
    """Return what tells one installation from another; it begins with the checkout's place."""
    project = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    return "\n".join([str(ROOT), *requirements, project, ""])


def _name(requirement: str) -> str:
    return "this checkout" if requirement in ("-e", str(ROOT)) else requirement


def _shown(folder: Path) -> str:
    return str(folder.relative_to(ROOT)) if folder.is_relative_to(ROOT) else str(folder)
