"""Runs the benchmarks one after another, and writes docs/benchmarks.md.

::

    python benchmarks/run.py [NAME ...] [--quick] [--list] [--document] [--limit SECONDS]

A benchmark is a folder beside this file with a ``run.py``. Each runs as a process of its own, for
``--limit`` seconds at most; what fails, or takes longer, is named in the document and the others go
on. Results are kept in ``results/``, one file each, so a later run of some benchmarks replaces
these and leaves the others. Those of ``--quick`` (24 minutes at most) stand in the document only
where there are no others. ``--document`` only writes the document. The exit status is 1 if a
benchmark did not come to its end.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from document import render  # noqa: E402
from machine import machine, versions  # noqa: E402
from report import Result, now  # noqa: E402

#: Seconds for each benchmark, and with --quick for each and for all.
LIMIT, QUICK_LIMIT, QUICK_TOTAL = 2400, 180, 1440
#: Seconds that a benchmark gets to stop its servers.
GRACE = 30


def main(arguments=None, folder=HERE, page=HERE.parent / "docs" / "benchmarks.md"):
    options = _options(arguments)
    names = sorted(one.parent.name for one in folder.glob("*/run.py"))
    if options.list:
        print("\n".join(f"{name:20} {_title(folder / name / 'run.py')}" for name in names))
        return 0
    unknown = set(options.names) - set(names)
    if unknown:
        sys.exit(f"no such benchmark: {', '.join(sorted(unknown))}; --list shows all")
    failed = [] if options.document else _run_all(options.names or names, folder, options)
    page.write_text(render(_results(folder, names), names), encoding="utf-8")
    print(f"--- {page}" + (f"; not to their end: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def _run_all(names, folder, options):
    """Run benchmarks and keep their results; return the names of those that failed."""
    kept = _kept(folder, options.quick)
    kept.mkdir(parents=True, exist_ok=True)
    each = options.limit or (QUICK_LIMIT if options.quick else LIMIT)
    end = time.monotonic() + (QUICK_TOTAL if options.quick else float("inf"))
    failed = []
    for name in names:
        print(f"--- {name}", flush=True)
        limit = min(each, end - time.monotonic())
        result = _run(folder / name / "run.py", options.quick, limit)
        result.write(kept / f"{name}.json")
        if result.error:
            failed.append(name)
            print(f"--- {name}: {result.error}", file=sys.stderr, flush=True)
    return failed


def _kept(folder, quick):
    return folder / "results" / ("quick" if quick else "full")


def _results(folder, names):
    """Return the results that are kept, by name; quick ones only where there is nothing better."""
    files = [_kept(folder, quick) / f"{name}.json" for quick in (True, False) for name in names]
    return {one.stem: Result.read(one) for one in files if one.exists()}


def _options(arguments):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="some benchmarks; else all")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round each")
    parser.add_argument("--list", action="store_true", help="show the benchmarks")
    parser.add_argument("--document", action="store_true", help="run nothing, write the document")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="for each benchmark")
    return parser.parse_args(arguments)


def _title(script):
    return script.read_text(encoding="utf-8").lstrip('"').partition("\n")[0].rstrip('"')


def _run(script, quick, limit):
    """Run one benchmark; return its result, or one that says why there is none."""
    name = script.parent.name
    made = Result(name, _title(script), now(), quick, load=[round(os.getloadavg()[0], 2)])
    if limit <= 0:
        made.error = "not run: the time for all was over"
    else:
        with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
            file = Path(scratch) / "result.json"
            command = [sys.executable, str(script), "--json", str(file)]
            if quick and _can_be_quick(script):
                command.append("--quick")
            begun = time.monotonic()
            printed, error = _finish(command, limit, Path(scratch) / "printed")
            made.seconds = round(time.monotonic() - begun, 1)
            with contextlib.suppress(OSError, ValueError):
                found = Result.read(file)
                found.arguments, found.error = [], error
                return found
        # It gives its results in another way, or none.
        made.text, made.error = printed, error
    made.machine, made.versions = machine(), versions()
    return made


def _can_be_quick(script):
    command = [sys.executable, str(script), "--help"]
    return "--quick" in subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _finish(command, limit, output):
    """Run a process for *limit* seconds at most; return what it printed, and why it failed."""
    told = deque(maxlen=25)
    with output.open("w") as file:
        # What it starts is in its group, so that nothing of it is left.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
    reader = threading.Thread(target=_pass_on, args=(process.stderr, told), daemon=True)
    reader.start()
    error = ""
    try:
        process.wait(limit)
    except subprocess.TimeoutExpired:
        error = f"stopped after {limit:.0f} s"
    finally:
        _stop(process)
        reader.join(5)
    printed = output.read_text()
    print(printed, end="", flush=True)
    if process.returncode and not error:
        error = f"ended with {process.returncode}"
    return printed, error and "\n".join([error, *told])


def _pass_on(lines, told):
    for line in lines:
        told.append(line.rstrip())
        print(line, end="", file=sys.stderr, flush=True)


def _stop(process):
    """End a benchmark and all that it started: in order, if that takes it no more than GRACE."""
    if process.poll() is None:
        process.terminate()  # it unwinds, see Report
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    sys.exit(main())
