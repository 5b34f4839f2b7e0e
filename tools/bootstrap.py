"""A virtual environment for a script that is run by whatever ``python3`` there is.

Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_SCRIPTS = "Scripts" if os.name == "nt" else "bin"
#: Written into an environment that was made here; it says what is installed.
_STAMP = "made-by-bootstrap"


def environment(folder: Path, requirement: str, *, editable: bool = False) -> Path:
    """Return the Python of a virtual environment in *folder* that has *requirement*.

    It is made, or brought up to date, only if it has to be. Ends the program with a sentence if
    that cannot be done.
    """
    python = folder / _SCRIPTS / "python"
    stamp = folder / _STAMP
    made_here = stamp.read_text(encoding="utf-8").partition("\n") if stamp.exists() else None
    wanted = f"{requirement} {_project()}"
    usable = _runs(python) and (made_here is None or made_here[0] == str(ROOT))
    if usable and made_here is not None and made_here[2] == wanted:
        return python
    if not usable:
        if folder.exists() and made_here is None:
            sys.exit(f"{folder} cannot be used and was not made here: move it away")
        _make(folder, stamp)
    name = "this checkout" if editable else requirement
    print(f"Installing {name} into {folder.relative_to(ROOT)}", flush=True)
    arguments = ["-e", requirement] if editable else [requirement]
    install = [str(python), "-m", "pip", "install", "-qq", *arguments]
    if subprocess.run(install, check=False, cwd=ROOT).returncode:
        sys.exit("pip failed, see above; nothing was run")
    stamp.write_text(f"{ROOT}\n{wanted}", encoding="utf-8")
    return python


def _make(folder: Path, stamp: Path) -> None:
    if importlib.util.find_spec("ensurepip") is None:
        sys.exit(
            f"{sys.executable} has no ensurepip, which a virtual environment needs. "
            "On Debian and Ubuntu: apt-get install python3-venv"
        )
    print(f"Making {folder.relative_to(ROOT)} with Python {sys.version.split()[0]}", flush=True)
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    # First of all, so that one which is interrupted is known as ours.
    stamp.write_text(f"{ROOT}\n", encoding="utf-8")
    if subprocess.run([sys.executable, "-m", "venv", str(folder)], check=False).returncode:
        sys.exit("the virtual environment could not be made, see above; nothing was run")


def _runs(python: Path) -> bool:
    """Tell whether *python* can be used: it is there, starts, is not too old, has pip."""
    check = "import pip, sys; sys.exit(sys.version_info < (3, 10))"
    try:
        done = subprocess.run([str(python), "-c", check], check=False, capture_output=True)
    except OSError:
        return False
    return done.returncode == 0


def _project() -> str:
    """Return what changes with the project's dependencies."""
    return hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
