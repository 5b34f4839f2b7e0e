from __future__ import annotations

import json
import os
import random
import re
import signal
import sqlite3
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from pathlib import Path

import pytest

from netspy_scrapy.commands.retry import main
from netspy_scrapy.dumps.files import DumpFile
from netspy_scrapy.dumps.items import ItemRecord

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals, modes: run it on Unix")

RETRY = (sys.executable, "-m", "netspy_scrapy.commands.retry")
SCRAPY_RETRY = (sys.executable, "-m", "scrapy", "netspy-retry")
BOTH = '["stores.First", "stores.Second"]'

#: Sinks that note each call in a file of their own; faults.json says what they do wrong.
STORES = """
import json
import sqlite3
import time
from pathlib import Path

from netspy_scrapy.pipelines.base import BasePipeline


class First(BasePipeline):
    def fault(self, name):
        path = Path("faults.json")
        faults = json.loads(path.read_text()) if path.exists() else {}
        return faults.get(self.name, {}).get(name)

    def note(self, **call):
        with open(f"{self.name}.calls", "a") as file:
            file.write(json.dumps(call) + "\\n")

    def open(self):
        if self.fault("open"):
            raise RuntimeError(self.fault("open"))

    def close(self):
        self.note(call="close")
        if self.fault("close"):
            raise RuntimeError(self.fault("close"))

    def save_items(self, table, items):
        return self.write(call="save", table=table, rows=items)

    def update_items(self, table, items, update_keys):
        return self.write(call="update", table=table, rows=items, keys=update_keys)

    def write(self, **call):
        if self.fault("sleep"):
            Path("writing").touch()
            time.sleep(self.fault("sleep"))
        if self.fault("raise"):
            raise RuntimeError(self.fault("raise"))
        if self.fault("answer") is not None:
            return self.fault("answer")
        refused = self.fault("refuse") or []
        rows = call["rows"]
        self.note(**{**call, "rows": [row for row in rows if row["n"] not in refused]})
        bad = {place: "bad row" for place, row in enumerate(rows) if row["n"] in refused}
        for row in rows:
            row["n"] = "spoiled"  # a sink may do as it likes with its rows
        return bad or True


class Second(First):
    pass


class Async(First):
    async def open(self):
        First.open(self)

    async def save_items(self, table, items):
        return self.write(call="save", table=table, rows=items)


class InsertOnly(First):
    supports_update = False


class Keyed(First):
    wants_unique_keys = True

    def save_items(self, table, items):
        return self.write(call="save", table=table, rows=items, unique=list(self.unique_keys))


class Database(BasePipeline):
    def open(self):
        self.db = sqlite3.connect("rows.db", check_same_thread=False)
        self.db.execute("CREATE TABLE IF NOT EXISTS rows (n PRIMARY KEY)")

    def save_items(self, table, items):
        refused = {}
        for place, row in enumerate(items):
            try:
                self.db.execute("INSERT INTO rows VALUES (?)", [row["n"]])
            except sqlite3.IntegrityError as exc:
                refused[place] = str(exc)
        self.db.commit()
        return refused or True


class Foreign:
    def process_item(self, item):
        raise AssertionError("a pipeline of another kind was asked")
"""


@pytest.fixture
def project(folder):
    """A working folder with sinks, and no settings yet."""
    (folder / "stores.py").write_text(STORES)
    return folder


def line(n, *sinks, **fields):
    """A dump line as ours; without sinks as netspy's."""
    record = {"table": "rows", "data": {"n": n, "text": "é"}, **fields}
    if sinks:
        record["pipelines"] = [f"stores.{name}" for name in sinks]
    return json.dumps(record, ensure_ascii=False)


def dump(*lines, path="failed_items.jsonl"):
    Path(path).write_text("".join(f"{one}\n" for one in lines), encoding="utf-8")


def left(path="failed_items.jsonl"):
    """The lines that are in the file."""
    return Path(path).read_text(encoding="utf-8").splitlines()


def faults(**sinks):
    Path("faults.json").write_text(json.dumps(sinks))


def calls(sink):
    """What the sink was called with, without close()."""
    path = Path(f"{sink}.calls")
    found = [json.loads(one) for one in path.read_text().splitlines()] if path.exists() else []
    return [one for one in found if one["call"] != "close"]


def stored(sink):
    return [row["n"] for call in calls(sink) for row in call["rows"]]


def run(*command, **environment):
    """Run a command as a user would; its stdout, stderr and exit status."""
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        env={**os.environ, **environment},
        check=False,
    )


def replay(*arguments, **environment):
    """Do the same as `run(*RETRY, "--items", ...)` in a fork, which need not import Scrapy."""
    with Path(".out").open("w+") as out, Path(".err").open("w+") as err:
        child = os.fork()
        if not child:
            sys.stdout, sys.stderr = out, err
            os.environ.update(environment)
            status = 99
            try:
                status = main(["--items", *arguments])
            except SystemExit as exc:
                status = exc.code
            except BaseException:  # noqa: BLE001 - shown, and asserted on
                traceback.print_exc()
            finally:
                out.flush()
                err.flush()
                os._exit(status)
        _, status = os.waitpid(child, 0)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(
            arguments, os.waitstatus_to_exitcode(status), out.read(), err.read()
        )


def start(*arguments):
    return subprocess.Popen(
        [*RETRY, "--items", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def leftovers():
    return [one.name for one in Path.cwd().iterdir() if ".replaying-" in one.name]


# Which sinks get a row -------------------------------------------------------------------------
def test_old_lines_go_through_all_sinks_of_setting_py(project):
    """A netspy line, which names no sink, is stored by every sink of netspy's own setting.py."""
    Path("setting.py").write_text(f"ITEM_PIPELINES = {BOTH}\n")
    dump(line(1), line(2, pipelines=None))
    done = run(*RETRY, "--items")

    assert done.stdout == "replayed 2 of 2 rows: 2 stored\n"
    assert (done.returncode, done.stderr) == (0, "")
    rows = [{"n": 1, "text": "é"}, {"n": 2, "text": "é"}]
    assert calls("First") == calls("Second") == [{"call": "save", "table": "rows", "rows": rows}]
    assert not Path("failed_items.jsonl").exists()
    assert not leftovers()


def test_scrapy_project_and_its_command(project):
    """In a Scrapy project its settings count, and `scrapy netspy-retry` does the same."""
    Path("scrapy.cfg").write_text("[settings]\ndefault = shop.settings\n")
    Path("shop").mkdir()
    Path("shop/__init__.py").touch()
    Path("shop/settings.py").write_text(
        "ITEM_PIPELINES = {'stores.Second': 2, 'stores.Async': 3, 'stores.First': 1,"
        " 'stores.Foreign': 0, 'stores.Keyed': None}\nFAILED_ITEM_PATH = 'dumped.jsonl'\n"
    )
    faults(First={"refuse": [2]}, Second={"refuse": [2]})
    dump(line(1), line(2), path="dumped.jsonl")
    done = run(*SCRAPY_RETRY, "--items")
    after = left("dumped.jsonl")
    faults()
    again = run(*RETRY, "--items")

    assert done.stdout == (
        "replayed 1 of 2 rows: 1 stored, 1 left in dumped.jsonl "
        "(First: 1, bad row; Second: 1, bad row)\n"
    )
    assert (done.returncode, again.returncode) == (1, 0)
    owed = json.loads(after[0])
    assert owed["pipelines"] == ["stores.First", "stores.Second"]
    assert owed["reason"] == "First: bad row; Second: bad row"
    assert stored("First") == stored("Second") == stored("Async") == [1, 2]
    assert not calls("Keyed")


def test_installed_script(project):
    """The package installs `netspy-retry`."""
    script = Path(sys.executable).with_name("netspy-retry")
    assert script.exists(), "install the package to run this"
    dump(line(1, "First"))
    done = run(script, "--items")

    assert (done.returncode, done.stdout) == (0, "replayed 1 of 1 rows: 1 stored\n")


def test_only_the_sinks_that_a_line_names(project):
    """A line that names its sinks goes to them and no others, also if no setting names any."""
    dump(line(1, "First"), line(2, "Second", "First"), line(3, "Second", "Second"))
    done = replay("-s", "ITEM_PIPELINES=stores.Database")

    assert done.returncode == 0
    assert stored("First") == [1, 2]
    assert stored("Second") == [2, 3]
    assert not Path("rows.db").exists()  # a sink that owes nothing is not even opened


def test_second_sink_fails(project):
    """Of two sinks the one that failed is owed alone: the line says so, with its other fields."""
    faults(Second={"raise": "disk full\nDETAIL: the row"})
    kept = {"reason": "old", "time": "2025-01-01T00:00:00+00:00", "spider": "s", "by": [1.5, None]}
    dump(line(1, "First", "Second", **kept))
    done = replay()
    after = left()
    faults()
    again = replay()

    assert done.returncode == 1
    assert done.stdout == (
        "replayed 0 of 1 rows: 0 stored, 1 left in failed_items.jsonl "
        "(Second: 1, RuntimeError: disk full)\n"
    )
    reason = "RuntimeError: disk full\nDETAIL: the row"
    assert [json.loads(one) for one in after] == [
        {**json.loads(line(1, "Second", **kept)), "reason": reason}
    ]
    assert "é" in after[0]
    assert again.returncode == 0
    assert stored("First") == stored("Second") == [1]


def test_refused_for_the_same_reason_again(project):
    """A line to which nothing new happened is put back byte for byte."""
    faults(First={"refuse": [1]})
    odd = '{"reason":"bad row",  "table":"rows","data":{"n":1},"pipelines":["stores.First"]}'
    dump(odd)
    done = replay()

    assert "(First: 1, bad row)" in done.stdout
    assert left() == [odd]


def test_netspy_paths_name_our_sinks(project):
    """`netspy.pipelines.*` in a line is our sink of the same name, and stays as it was written."""
    path = "netspy.pipelines.base.BasePipeline"
    dump(line(1, pipelines=[path]))
    done = replay()

    assert "netspy_scrapy.pipelines.base.BasePipeline does not define save_items" in done.stdout
    assert json.loads(left()[0])["pipelines"] == [path]


def test_class_of_a_script(project):
    """A script's sink is not importable: the message says what to do, and that then works."""
    dump(line(1, pipelines=["__main__.First"]), line(2, "First"))
    before = left()[0]
    done = replay()
    after = left()
    again = replay("-s", "ITEM_PIPELINES=stores.First")

    assert done.returncode == 1
    assert "move First to a module, and name it in ITEM_PIPELINES" in done.stderr
    assert after == [before]
    assert again.returncode == 0
    assert stored("First") == [2, 1]


def test_sinks_that_cannot_be_used(project):
    """They leave their lines byte for byte, are named with the reason, and hinder no other."""
    Path("exits.py").write_text("raise SystemExit(3)")
    faults(Second={"open": "no route to host"})
    reasons = {
        "nowhere.Sink": "it cannot be loaded: ModuleNotFoundError: No module named 'nowhere'",
        "stores.Missing": "doesn't define any object named 'Missing'",
        "stores.Foreign": "it is not a BasePipeline",
        "exits.Sink": "it cannot be loaded: SystemExit: 3",
        "stores.Second": "it cannot be opened: RuntimeError: no route to host",
    }
    odd = [
        f'{{ "pipelines":["{path}"],"table" : "rows", "data":{{"n":1.50}}, "x":1}}'
        for path in reasons
    ]
    dump(*odd, line(2, "First"), *odd)
    done = replay()

    assert done.returncode == 1
    assert done.stderr.count(" cannot be used, its rows stay: ") == len(reasons)
    for reason in reasons.values():
        assert done.stderr.count(reason) == done.stdout.count(reason) == 1
    assert done.stdout.startswith("replayed 1 of 11 rows: 1 stored, 10 left in failed_items.jsonl")
    assert left() == [*odd, *odd]
    assert stored("First") == [2]


def test_no_sink_is_configured(project):
    """If nobody says where rows go, ITEM_PIPELINES is named and the file is not touched."""
    dump(line(1, "First"), line(2))
    before = Path("failed_items.jsonl").stat()
    done = replay("-s", "ITEM_PIPELINES=stores.Foreign")
    after = Path("failed_items.jsonl").stat()

    assert done.returncode == 2
    assert "ITEM_PIPELINES names no sink" in done.stderr
    assert not calls("First")
    assert (before.st_ino, before.st_mtime_ns, before.st_size) == (
        after.st_ino, after.st_mtime_ns, after.st_size,
    )  # fmt: skip


def test_spider_beside_a_sink_is_not_run(project):
    """Importing a sink from a spider's file does not run the spider at the file's end."""
    Path("spider.py").write_text(
        "import netspy_scrapy as mw\nfrom stores import First\n\n\n"
        "class Ran(mw.AirSpider):\n"
        "    def start_requests(self):\n        open('ran', 'w').close()\n        return []\n\n\n"
        "Ran().start()\n"
    )
    dump(line(1, pipelines=["spider.First"]))
    done = run(*RETRY, "--items")

    assert done.returncode == 0, done.stderr
    assert stored("First") == [1]
    assert not Path("ran").exists()


# How rows are offered --------------------------------------------------------------------------
def test_bad_rows_cost_themselves_only(project):
    """Of 120 rows that a database partly refuses 118 are stored, and the reason is told."""
    dump(*[line(n % 118, "Database") for n in range(120)])
    done = replay()

    assert done.stdout == (
        "replayed 118 of 120 rows: 118 stored, 2 left in failed_items.jsonl "
        "(Database: 2, UNIQUE constraint failed: rows.n)\n"
    )
    assert done.returncode == 1
    assert [json.loads(one)["data"]["n"] for one in left()] == [0, 1]


def test_updates_and_inserts_keep_their_order(project):
    """update_keys decide between update_items and save_items; rows of a table keep their order."""
    dump(
        line(1, "First"),
        line(2, "First", table="other"),
        line(3, "First"),
        line(4, "First", update_keys=["n"]),
        line(5, "First", table="other"),
        line(6, "First"),
        line(7, "First", update_keys=["n", "text"]),
    )
    done = replay()

    assert done.returncode == 0
    assert [
        (call["call"], call["table"], [row["n"] for row in call["rows"]], call.get("keys"))
        for call in calls("First")
    ] == [
        ("save", "rows", [1, 3], None),
        ("save", "other", [2, 5], None),
        ("update", "rows", [4], ["n"]),
        ("save", "rows", [6], None),
        ("update", "rows", [7], ["n", "text"]),
    ]


def test_updates_that_cannot_be_done(project):
    """Such a row stays with the reason, and is never inserted instead; the others go on."""
    wrong = [
        ("InsertOnly", ["n"], "InsertOnly stores new rows only"),
        ("First", [], "an update without a key would change every row"),
        ("First", ["n", "sku"], "no value for the update key 'sku'"),
        ("Database", ["n"], "UpdateNotSupportedError: Database cannot update rows"),
    ]
    dump(*[line(1, sink, update_keys=keys) for sink, keys, _ in wrong], line(2, "First"))
    before = [json.loads(one) for one in left()]
    done = replay()

    assert done.returncode == 1
    after = [json.loads(one) for one in left()]
    for (_, _, reason), old, new in zip(wrong, before, after, strict=False):
        assert new.pop("reason").startswith(reason)
        assert new == old
    assert len(after) == len(wrong)
    assert stored("First") == [2]


def test_unique_keys_reach_the_sink(project):
    """A sink that wants the unique keys has those of the rows of each call."""
    dump(line(1, "Keyed", unique_keys=["n"]), line(2, "Keyed"), line(3, "Keyed", unique_keys=["n"]))
    replay()

    assert [(call["unique"], call["rows"][0]["n"]) for call in calls("Keyed")] == [
        (["n"], 1), ([], 2), (["n"], 3),
    ]  # fmt: skip


def test_batches_and_async_sinks(project):
    """A call gets at most ITEM_MAX_CACHED_COUNT rows; async sinks work; each is closed once."""
    dump(*[line(n, "Async") for n in range(10)])
    done = replay(NETSPY_ITEM_MAX_CACHED_COUNT="4")

    assert done.returncode == 0
    assert [len(call["rows"]) for call in calls("Async")] == [4, 4, 2]
    assert Path("Async.calls").read_text().count('"close"') == 1


def test_sink_that_stores_nothing(project):
    """False, or None, for a batch leaves its rows; so does a sink that fails in closing."""
    faults(First={"answer": False}, Second={"close": "lost"})
    dump(line(1, "First"), line(2, "Second"))
    done = replay()

    assert "(First: 1, save_items returned False)" in done.stdout
    assert "Second could not be closed, so its rows may not be stored: RuntimeError: lost" in (
        done.stderr
    )
    assert done.returncode == 1
    faults(Second={"close": "lost"})
    dump(line(3, "Second"))
    assert replay().returncode == 1


# Lines that cannot be replayed -----------------------------------------------------------------
def test_broken_lines_are_set_aside(project):
    """A half-written line is kept in <path>.broken, with a warning; the others replay."""
    half = '{"table": "rows", "da'
    dump(line(1, "First"), "", half, line(2, "First"), half)
    done = replay()

    assert done.stdout == (
        "replayed 2 of 2 rows: 2 stored; 2 broken lines set aside in failed_items.jsonl.broken\n"
    )
    assert "failed_items.jsonl.broken" in done.stderr
    assert done.returncode == 1
    assert left("failed_items.jsonl.broken") == [half, half]
    assert not Path("failed_items.jsonl").exists()
    assert stored("First") == [1, 2]
    assert replay().returncode == 0


def test_line_that_is_no_row(project):
    """A line without table and data stays as it is, and its content is not printed."""
    odd = '{"url": "https://secret.example/", "callback": "parse"}'
    wrong = '{"table": "rows", "data": ["private"], "pipelines": ["stores.First"]}'
    dump(odd, line(2, "First"), wrong)
    done = replay("-s", "ITEM_PIPELINES=stores.First")

    assert done.returncode == 1
    assert "it is no row, having no 'table' and no 'data'" in done.stderr
    assert "2 left in failed_items.jsonl (unreadable: 2, " in done.stdout
    assert "secret" not in done.stdout + done.stderr
    assert "private" not in done.stdout + done.stderr
    assert left() == [odd, wrong]


def test_classes_of_the_project(project):
    """An Enum from the project's spiders is found; a line whose class is not known stays."""
    Path("spiders.py").write_text(
        "from enum import Enum\n\n\nclass Color(Enum):\n    RED = 'red'\n\n\n"
        "import stores\nstores.Color = Color\n"
    )
    Path("stores.py").write_text(
        STORES + "\n\nclass Colors(First):\n"
        "    def save_items(self, table, items):\n"
        "        self.note(call='save', rows=[{'n': str(one['color'])} for one in items])\n"
        "        return True\n"
    )
    color = {"$netspy": "enum", "class": "spiders:Color", "v": "RED"}
    dump(
        line(1, "Colors", data={"color": color}),
        line(2, "First", data={"color": {**color, "class": "gone:Color"}}),
    )
    unknown = left()[1]
    without = replay()
    lines = left()
    done = replay("-s", "SPIDER_MODULES=spiders")

    assert without.returncode == 1
    assert "spiders:Color is not known here" in without.stderr
    assert "SPIDER_MODULES=module" in without.stderr
    assert lines[1] == unknown
    assert stored("Colors") == ["Color.RED"]
    assert "gone:Color is not known here" in done.stderr
    assert left() == [unknown]


# Settings, exit status -------------------------------------------------------------------------
def test_nothing_to_replay(project):
    """No file, or an empty one, is said and is no failure."""
    none = replay()
    Path("failed_items.jsonl").touch()
    empty = replay()
    Path("failed_items.jsonl").write_text("\n\n")
    blank = replay()

    assert none.stdout == "nothing to replay: failed_items.jsonl does not exist\n"
    assert empty.stdout == blank.stdout == "nothing to replay: failed_items.jsonl is empty\n"
    assert none.returncode == empty.returncode == blank.returncode == 0


def test_which_file(project):
    """--path beats -s, which beats NETSPY_FAILED_ITEM_PATH, which beats setting.py."""
    Path("setting.py").write_text("FAILED_ITEM_PATH = 'd'\n")
    for n, name in enumerate("abcd"):
        dump(line(n, "First"), path=name)
    variable = {"NETSPY_FAILED_ITEM_PATH": "c"}
    replay("--path", "a", "-s", "FAILED_ITEM_PATH=b", **variable)
    replay("-s", "FAILED_ITEM_PATH=b", **variable)
    replay(**variable)
    replay()

    assert stored("First") == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-s", "ITEM_MAX_CACHED_COUNT=hunter2"], "ITEM_MAX_CACHED_COUNT cannot be used: expected"),
        (["-s", "nonsense"], "NAME=VALUE"),
        (["--path", "stores"], "not a regular file"),
        (["--path", "stores.py/x"], "stores.py"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_wrong_use(project, arguments, message):
    """What cannot be used is named, without the value of a setting, and the status is 2."""
    Path("stores").mkdir()
    dump(line(1, "First"))
    done = replay(*arguments)

    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert "hunter2" not in done.stderr
    assert left() == [line(1, "First")]


@pytest.mark.parametrize("command", [RETRY, SCRAPY_RETRY, [*SCRAPY_RETRY, "--items", "--nonsense"]])
def test_nothing_chosen(project, command):
    """Without --items or --requests, or with an option that is not known, nothing is done."""
    dump(line(1, "First"))
    done = run(*command)

    assert done.returncode == 2
    assert "error: " in done.stderr
    assert "Traceback" not in done.stderr
    assert left() == [line(1, "First")]


def test_settings_that_cannot_be_read(project):
    """A setting.py that does not run is named with its error."""
    Path("setting.py").write_text("ITEM_PIPELINES = nonsense\n")
    dump(line(1, "First"))
    done = replay()

    assert done.returncode == 2
    assert "NameError: name 'nonsense' is not defined" in done.stderr
    assert left() == [line(1, "First")]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root reads all: run as a user")
def test_file_without_permission(project):
    """A file that may not be read is named, and stays."""
    dump(line(1, "First"))
    Path("failed_items.jsonl").chmod(0o200)
    done = replay()

    assert done.returncode == 2
    assert "permission denied" in done.stderr.lower()


def test_no_passwords_in_the_output(project):
    """A database error that quotes a password, a URL with one, or the row shows none of them."""
    faults(
        First={"raise": "hunter2 refused at mysql://root:s3cret@db/x\nDETAIL: (private)"},
        Second={"open": "login hunter2 failed"},
    )
    dump(line(1, "First", "Second"))
    done = replay("-s", "MYSQL_PASSWORD=hunter2")

    said = done.stdout + done.stderr
    assert "First: 1, RuntimeError: *** refused at mysql://***@db/x" in said
    assert "login *** failed" in said
    assert not re.search("hunter2|s3cret|private", said)


# The terminal ----------------------------------------------------------------------------------
@pytest.mark.parametrize("tqdm", [False, True])
def test_bar_on_a_terminal(project, tqdm):
    """On a terminal a bar shows how far it is, with or without tqdm; the outcome comes last."""
    import fcntl
    import pty
    import termios

    if tqdm:
        pytest.importorskip("tqdm", reason="install the extra 'progress'")
    else:
        Path("tqdm.py").write_text("raise ImportError")
    dump(*[line(n, "First") for n in range(10)])
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    with subprocess.Popen([*RETRY, "--items", "-s", "ITEM_MAX_CACHED_COUNT=4"],
                          stdout=slave, stderr=slave) as process:  # fmt: skip
        os.close(slave)
        seen = b""
        while chunk := read(master):
            seen += chunk
    os.close(master)

    assert process.returncode == 0
    assert (b" 0/10 [" if tqdm else b"\r8 of 10 rows (80 %)") in seen
    assert seen.endswith(b"replayed 10 of 10 rows: 10 stored\r\n")


def read(terminal):
    try:
        return os.read(terminal, 65536)
    except OSError:  # what Linux gives when the other side is closed
        return b""


# Stopping, killing, meeting others -------------------------------------------------------------
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_ends_after_the_batch(project, number):
    """Ctrl-C lets the batch at work end, puts the rest back, sums up and exits with 130."""
    faults(First={"sleep": 0.5})
    dump(*[line(n, "First", "Second") for n in range(6)])
    process = start("-s", "ITEM_MAX_CACHED_COUNT=2")
    wait_for(Path("writing").exists)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)

    assert process.returncode == 128 + number
    assert "stopping after the batch" in err
    assert out == "replayed 0 of 6 rows: 0 stored, 6 left in failed_items.jsonl\n"
    assert stored("First") == [0, 1]
    assert not calls("Second")
    owed = {json.loads(one)["data"]["n"]: json.loads(one)["pipelines"] for one in left()}
    assert owed == {n: ["stores.First", "stores.Second"][n < 2 :] for n in range(6)}
    assert not leftovers()


def test_second_signal_ends_at_once(project):
    """Ctrl-C twice does not wait for a sink that hangs; its batch stays in the file."""
    faults(First={"sleep": 60})
    dump(*[line(n, "First") for n in range(6)])
    before = left()
    process = start("-s", "ITEM_MAX_CACHED_COUNT=2")
    wait_for(Path("writing").exists)
    process.send_signal(signal.SIGINT)
    assert "stopping" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=10)

    assert process.returncode == 130
    assert "Traceback" not in err
    assert out == "replayed 0 of 6 rows: 0 stored, 6 left in failed_items.jsonl\n"
    assert left() == before
    assert not leftovers()


@pytest.mark.timed
def test_kill_loses_no_row(project):
    """kill -9 at any moment: in the end every row is stored, at least once, by both sinks."""
    rows = 300
    dump(*[line(n, "First", "Second") for n in range(rows)])
    faults(First={"sleep": 0.02})
    kills = 0
    for _ in range(6):
        process = start("-s", "ITEM_MAX_CACHED_COUNT=10")
        known = len(calls("First"))
        wait_for(lambda p=process, k=known: len(calls("First")) > k or p.poll() is not None)
        time.sleep(random.uniform(0, 0.03))
        process.kill()
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
    faults(First={})
    done = replay()

    assert kills >= 4
    assert done.returncode == 0
    for sink in ("First", "Second"):
        counts = Counter(stored(sink))
        assert set(counts) == set(range(rows))
        # At most the portion at work is done again: 10 rows a kill.
        assert sum(counts.values()) <= rows + 10 * kills
    assert not Path("failed_items.jsonl").exists()
    assert not leftovers()


def test_crawl_appends_meanwhile(project):
    """Rows that a crawl dumps while a replay runs are there for the next one: none is lost."""
    dump(*[line(n, "First") for n in range(200)])
    faults(First={"sleep": 0.005, "refuse": list(range(0, 200, 10))})
    target = DumpFile("failed_items.jsonl")
    appended = []
    stop = threading.Event()

    def crawl():
        while not stop.is_set():
            n = 1000 + len(appended)
            target.append([ItemRecord("rows", {"n": n}, pipelines=("stores.First",)).to_line()])
            appended.append(n)
            time.sleep(0.002)

    thread = threading.Thread(target=crawl)
    thread.start()
    try:
        done = run(*RETRY, "--items", "-s", "ITEM_MAX_CACHED_COUNT=5")
    finally:
        stop.set()
        thread.join()
    faults()
    again = replay()

    assert len(appended) > 20
    assert done.returncode == 1
    assert again.returncode == 0
    assert Counter(stored("First")) == Counter([*range(200), *appended])


def test_another_replay_is_running(project):
    """What a running replay holds is left to it, and said."""
    dump(line(1, "First"))
    with DumpFile("failed_items.jsonl").claim():
        done = replay()

    assert done.returncode == 1
    assert done.stdout == "nothing done: another replay of failed_items.jsonl is running\n"
    assert left() == [line(1, "First")]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_memory_is_flat(project):
    """A file of 30 MB takes no more memory than one of 1 MB, within 10 MB."""
    text = "x" * 1000

    def peak(rows):
        with Path("failed_items.jsonl").open("w") as file:
            file.writelines(line(n, "First", text=text) + "\n" for n in range(rows))
        script = (
            "import atexit, sys\n"
            "atexit.register(lambda: print(*open('/proc/self/status')))\n"
            "from netspy_scrapy.commands.retry import main\n"
            "sys.exit(main(['--items', '-s', 'ITEM_MAX_CACHED_COUNT=500']))"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        )
        assert done.stdout.startswith(f"replayed {rows} of {rows} rows: {rows} stored\n")
        return int(re.search(r"VmHWM:\s+(\d+) kB", done.stdout)[1]) / 1024

    small = peak(1_000)

    assert peak(30_000) < small + 10


def test_settings_of_a_spider(folder: Path) -> None:
    """--spider takes what a spider sets for itself, from a file whose start() is left alone."""
    (folder / "shop.py").write_text(
        "import netspy_scrapy as mw\n"
        "class Shop(mw.AirSpider):\n"
        "    __custom_setting__ = dict(\n"
        "        SQLITE_PATH='shop.db', FAILED_ITEM_PATH='shop.jsonl',\n"
        "        ITEM_PIPELINES=['netspy.pipelines.sqlite.SqlitePipeline'])\n"
        "    def start_requests(self):\n"
        "        raise RuntimeError('must not run')\n"
        "Shop().start()\n"
    )
    (folder / "shop.jsonl").write_text('{"table": "books", "data": {"title": "t"}}\n')
    command = [
        sys.executable,
        "-m",
        "netspy_scrapy.commands.retry",
        "--items",
        "--spider",
        "shop.py",
    ]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stderr
    with sqlite3.connect(folder / "shop.db") as database:
        assert database.execute("SELECT title FROM books").fetchall() == [("t",)]
    assert not (folder / "shop.jsonl").exists()
