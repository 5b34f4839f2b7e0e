from __future__ import annotations

import csv
import enum
import io
import json
import logging
import random
import signal
import stat
import sys
import time
import tracemalloc
import uuid
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from datetime import time as clock
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import pytest
import scrapy
from scrapy.settings import Settings

from netspy_scrapy.exceptions import ConfigError, PipelineError, UpdateNotSupportedError
from netspy_scrapy.items import Item
from netspy_scrapy.pipelines.csv import CsvPipeline
from tests.pipelines import processes

on_unix = pytest.mark.skipif(sys.platform == "win32", reason="modes, signals: run it on Unix")


def open_sink(folder="."):
    sink = CsvPipeline()
    sink.bind(SimpleNamespace(settings=Settings({"CSV_OUTPUT_DIR": str(folder)})))
    sink.open()
    return sink


@pytest.fixture
def sink():
    return open_sink()


def read(path="t.csv"):
    with Path(path).open(encoding="utf-8-sig", newline="") as file:
        return list(csv.reader(file))


def names(folder="."):
    return sorted(path.name for path in Path(folder).iterdir())


def start(script, *args):
    """Run *script* in a process of its own, with a sink for this folder."""
    return processes.start(CsvPipeline, {"CSV_OUTPUT_DIR": "."}, script, *args)


# Header and columns ----------------------------------------------------------------------------
def test_header_is_the_union_of_the_first_batch(sink):
    """Fields that only later rows of the first batch have are columns too, in order."""
    answer = sink.save_items("t", [{"a": 1, "b": 2}, {"c": 3, "a": 4}])

    assert answer == {}
    assert Path("t.csv").read_bytes() == b"a,b,c\r\n1,2,\r\n4,,3\r\n"


def test_later_runs_keep_the_header():
    """A later run appends in the header's order, whatever the order of its fields."""
    open_sink().save_items("t", [{"a": 1, "b": 2, "c": 3}])
    open_sink().save_items("t", [{"c": 33, "a": 11}, {"b": 222, "c": 333, "a": 111}])

    assert Path("t.csv").read_text() == "a,b,c\n1,2,3\n11,,33\n111,222,333\n"


@pytest.mark.parametrize("again", [False, True], ids=["same run", "later run"])
def test_new_field_gets_a_column(sink, caplog, again):
    """A field that the header does not know is added; older rows get an empty cell."""
    sink.save_items("t", [{"a": 'x"\r\n,y', "b": "1\n\n2"}, {"a": "", "b": None}, {"a": "\r"}])
    sink = open_sink() if again else sink
    sink.save_items("t", [{"b": 2, "new, one": 3}, {"a": 1, "n2": "4"}])

    assert read() == [
        ["a", "b", "new, one", "n2"],
        ['x"\r\n,y', "1\n\n2", "", ""],
        ["", "", "", ""],
        ["\r", "", "", ""],
        ["", "2", "3", ""],
        ["1", "", "", "4"],
    ]
    assert "has 2 more columns: 'new, one', 'n2'" in caplog.text
    assert names() == ["t.csv", "t.csv.lock"]


def test_files_made_elsewhere_keep_their_style(sink):
    r"""Byte order mark and \n of an existing file stay, and empty lines are not made rows."""
    Path("t.csv").write_bytes(b'\xef\xbb\xbf"u\nrl",b\n1,"x\ny"\n\n3,5" disk\n')
    sink.save_items("t", [{"b": "a\rb", "u\nrl": "é"}])
    sink.save_items("t", [{"c": 1}])

    assert Path("t.csv").read_bytes() == (
        b'\xef\xbb\xbf"u\nrl",b,c\n1,"x\ny",\n\n3,5" disk,\n\xc3\xa9,"a\rb",\n,,1\n'
    )


def test_header_written_by_hand(sink):
    """A file that holds nothing but a header, without a newline, is that header."""
    Path("t.csv").write_text("b,a")
    sink.save_items("t", [{"a": 1, "b": 2}])

    assert read() == [["b", "a"], ["2", "1"]]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"a;\xe9\r\n1;2\r\n", "the header of .* is not UTF-8"),
        (b"\r\na,b\r\n", "the first line of .* is not a header"),
        (b"a,b\r1,2\r", "the first line of .* is not a header"),
        (b'a,"b\r\n1,2\r\n', "has a quote that does not end"),
        (b"x" * (4 * 1024 * 1024 + 9), "too long to be a header"),
    ],
)
def test_file_without_a_header_is_left_alone(sink, content, why):
    """A file that cannot be appended to in order is not touched: the batch is refused."""
    Path("t.csv").write_bytes(content)

    with pytest.raises(PipelineError, match=why):
        sink.save_items("t", [{"a": 1}])
    assert Path("t.csv").read_bytes() == content


@on_unix
def test_mode_and_link_survive_a_new_column(sink):
    """A file reached through a link is replaced in its own place, with its mode."""
    Path("real").mkdir()
    Path("real/data.csv").touch(0o640)
    Path("t.csv").symlink_to("real/data.csv")
    sink.save_items("t", [{"a": 1}])
    sink.save_items("t", [{"b": 2}])

    assert Path("t.csv").is_symlink()
    assert stat.S_IMODE(Path("real/data.csv").stat().st_mode) == 0o640
    assert read() == [["a", "b"], ["1", ""], ["", "2"]]


def test_new_column_takes_little_memory(sink):
    """A file is copied piece by piece when its header grows."""
    Path("t.csv").write_bytes(b"a\r\n" + b'"x\ny",zzzzzzzzzzzzzz\r\n' * 200_000)
    tracemalloc.start()
    sink.save_items("t", [{"b": 2}])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 500_000
    assert Path("t.csv").stat().st_size > 4_600_000


def test_file_taken_away_or_changed_in_between(sink):
    """A file that a person moved, emptied or edited during the crawl is looked at anew."""
    sink.save_items("t", [{"a": 1, "b": 2}])
    Path("t.csv").rename("moved.csv")
    sink.save_items("t", [{"b": 3}])
    first = read()
    Path("t.csv").write_text("x,a,b\n7,8,9\n")
    sink.save_items("t", [{"b": 4}])
    second = read()
    Path("t.csv").write_text("")
    sink.save_items("t", [{"b": 5}])

    assert read("moved.csv") == [["a", "b"], ["1", "2"]]
    assert first == [["b"], ["3"]]
    assert second == [["x", "a", "b"], ["7", "8", "9"], ["", "", "4"]]
    assert read() == [["b"], ["5"]]


# Values ----------------------------------------------------------------------------------------
class Text(enum.Enum):
    ONE = "one"


class Number(enum.IntEnum):
    TWO = 2


@dataclass
class Price:
    value: Decimal
    seen: date


class Shop(scrapy.Item):
    name = scrapy.Field()


class Nested(Item):
    pass


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        ("", ""),
        (" 007 ", " 007 "),
        ("=1+1", "=1+1"),
        (True, "True"),
        (5, "5"),
        (2**80, str(2**80)),
        (0.1, "0.1"),
        (float("nan"), "nan"),
        ('a"b,c\nd\re\r\nf\tg', 'a"b,c\nd\re\r\nf\tg'),
        pytest.param(
            "a\0b", "a\0b",
            marks=pytest.mark.skipif(
                sys.version_info < (3, 11), reason="csv.reader takes NUL from 3.11 on: run it there"
            ),
        ),
        ("中é\U0001f600\u2028", "中é\U0001f600\u2028"),
        ("a\udc80b", "a\\udc80b"),
        (b"caf\xc3\xa9", "café"),
        (bytearray(b"\xff\x00"), "/wA="),
        (datetime(2025, 3, 1, 12, tzinfo=timezone.utc), "2025-03-01T12:00:00+00:00"),
        (date(2025, 3, 1), "2025-03-01"),
        (clock(1, 2), "01:02:00"),
        (timedelta(days=1, seconds=5), "1 day, 0:00:05"),
        (Decimal("1.10"), "1.10"),
        (Decimal("1E+5"), "100000"),
        (Decimal("NaN"), "NaN"),
        (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (Path("a") / "b", str(Path("a") / "b")),
        (Text.ONE, "one"),
        (Number.TWO, "2"),
        ([1, "中", None, [True]], '[1, "中", null, [true]]'),
        ((1, b"x"), '[1, "x"]'),
        ({"b", "a", 3}, '["a", "b", 3]'),
        ({"k": {1: float("inf")}, b"b": "\udc80"}, r'{"k": {"1": null}, "b": "\udc80"}'),
        ({("a", 2): 1}, r'{"[\"a\", 2]": 1}'),
        (Price(Decimal("9.90"), date(2025, 3, 1)), '{"value": "9.90", "seen": "2025-03-01"}'),
        (Shop(name=Text.ONE), '{"name": "one"}'),
        (Nested(a=[Nested(b=1)]), '{"a": [{"b": 1}]}'),
    ],
)  # fmt: skip
def test_value_is_one_cell(sink, value, text):
    """Each kind of value is written as documented, and read back as one cell."""
    answer = sink.save_items("t", [{"v": value, "w": "next"}])

    assert answer == {}
    assert read() == [["v", "w"], [text, "next"]]


def test_any_text_comes_back(sink):
    """Quotes, commas and line ends in any combination are read back as they were."""
    rng = random.Random(5)
    rows = [
        ["".join(rng.choices('"",\r\n aé', k=rng.randrange(6))) for _ in range(3)]
        for _ in range(3000)
    ]
    for at in range(0, 3000, 100):
        batch = [dict(zip(("x", 'y"\r\n', "z"), row, strict=True)) for row in rows[at : at + 100]]
        sink.save_items("t", batch)

    assert read()[1:] == rows


def loop():
    value = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"a": object()}, "field 'a': cannot store a value of type object"),
        ({"a": [{"b": lambda: 1}]}, "field 'a': cannot store a value of type function"),
        ({"a": loop()}, "field 'a': contains itself, or is nested too deep"),
        ({"a": 10**5000}, "Exceeds the limit"),
        ({"a": [10**5000]}, "field 'a': Exceeds the limit"),
        ({}, "the row has no fields"),
        ({1: "x"}, "the name 1 is not text"),
        ({"a\0": "x"}, r"the name 'a\x00' contains NUL"),
        ({"\udc80": "x"}, r"the name '\udc80' contains lone surrogates"),
    ],
)
def test_bad_row_costs_one_row(sink, row, reason):
    """A row that cannot be written is refused with its reason; the others are written."""
    rows = [{"a": n} for n in range(1000)]
    rows[500] = row
    answer = sink.save_items("t", rows)

    assert list(answer) == [500]
    assert answer[500].startswith(reason)
    assert [int(one) for (one,) in read()[1:]] == [n for n in range(1000) if n != 500]


def test_batch_of_bad_rows_makes_no_file(sink):
    """Where nothing can be written, nothing is made."""
    answer = sink.save_items("t", [{}, {"a": object()}])

    assert sorted(answer) == [0, 1]
    assert names() == []


# Names -----------------------------------------------------------------------------------------
TABLES = [
    "news", "新闻", "a b", "a.b", "a-b", "../x", "..", ".", "", "/etc/passwd", "a/b", "a\\b",
    "a;drop", 'a"b', "a_b", "CON", "con.x", "nul", "x" * 300, "x" * 301, "中" * 100, "a\nb", "a\0b",
    "\udc80", ".hidden", "dot.", " a", "a ", "news~d42ff05c", "_._x~d42ff05c", "C:x", "%s", "*",
]  # fmt: skip


def test_every_table_has_its_own_file(folder):
    """Whatever its name, a table is one file in the folder, and no two tables share one."""
    Path("out").mkdir()
    sink = open_sink("out")
    for number, table in enumerate(TABLES):
        sink.save_items(table, [{"n": number}])
    files = [name for name in names("out") if name.endswith(".csv")]

    assert names() == ["out"]
    assert sorted(int(read(f"out/{name}")[1][0]) for name in files) == list(range(len(TABLES)))
    assert {"news.csv", "新闻.csv", "a b.csv", "a.b.csv", "a_b.csv"} <= set(files)
    assert not {"CON.csv", "con.x.csv", "nul.csv"} & set(files)  # Windows has devices there
    assert not [name for name in files if set(name) & set('<>:"/\\|?*;') or name.startswith(".")]


def test_folder_is_made_and_kept(folder, monkeypatch):
    """The folder is made with its parents, and a changed working folder does not matter."""
    sink = open_sink("deep/er")
    Path("other").mkdir()
    monkeypatch.chdir("other")
    sink.save_items("t", [{"a": 1}])

    assert (folder / "deep/er/t.csv").is_file()


def test_folder_that_cannot_be_made():
    """A wrong CSV_OUTPUT_DIR is an error at the start that names the setting."""
    Path("file").touch()

    with pytest.raises(PipelineError, match="CSV_OUTPUT_DIR = 'file/x' cannot be made"):
        open_sink("file/x")
    with pytest.raises(ConfigError, match="CSV_OUTPUT_DIR"):
        open_sink("")


def test_updates_are_refused(sink):
    """A CSV file cannot be updated, and says so."""
    assert not sink.supports_update
    with pytest.raises(UpdateNotSupportedError):
        sink.update_items("t", [{"a": 1}], ["a"])


# Torn rows, killed writers, full disks ---------------------------------------------------------
ROWS = [["1", 'x"y'], ["2", "a\r\nb"], ["3", "line\n"], ["4", ""], ["5", "\n\r\n,\n"]]


def test_file_cut_anywhere(caplog):
    """Wherever a killed writer stopped, its last row is set aside and the next one is whole."""
    open_sink().save_items("t", [{"n": n, "v": v} for n, v in ROWS])
    whole = Path("t.csv").read_bytes()
    ends = [len("n,v\r\n")]  # where a record ends
    for row in ROWS:
        text = io.StringIO(newline="")
        csv.writer(text).writerow(row)
        ends.append(ends[-1] + len(text.getvalue().encode()))
    assert ends[-1] == len(whole)

    for cut in range(ends[0], len(whole)):
        caplog.clear()
        Path("t.csv").write_bytes(whole[:cut])
        Path("t.csv.torn").unlink(missing_ok=True)
        open_sink().save_items("t", [{"v": "next", "n": 9}])
        complete = sum(end <= cut for end in ends) - 1
        torn = whole[ends[complete] : cut]

        assert read() == [["n", "v"], *ROWS[:complete], ["9", "next"]]
        assert Path("t.csv.torn").exists() == bool(torn)
        if torn:
            path = Path("t.csv").absolute()
            text = (
                f"{path} did not end with a complete row (its writer was killed?): "
                f"{len(torn)} bytes are now in {path}.torn"
            )
            assert Path("t.csv.torn").read_bytes() == torn + b"\n"
            assert caplog.record_tuples == [("CsvPipeline", logging.WARNING, text)]


def test_torn_in_the_same_run(sink):
    """What another, killed process left half written is set aside in the midst of a run too."""
    sink.save_items("t", [{"a": 1}])
    for _ in range(2):
        with Path("t.csv").open("a") as file:
            file.write('"whole"\n"half\n')
        sink.save_items("t", [{"a": 2}])

    assert read() == [["a"], ["1"], ["whole"], ["2"], ["whole"], ["2"]]
    assert Path("t.csv.torn").read_text() == '"half\n\n"half\n\n'


KILLED = """
seed = int(sys.argv[1])
n = 0
while True:
    rows = [{"run": seed, "n": n + i, "text": ('"q\\n,' * 500) + str(n + i)} for i in range(50)]
    if n % 500 == 250:
        rows[7]["extra%d" % (seed % 3)] = n
    assert sink.save_items("t", rows) == {}
    n += 50
    print(n, flush=True)
"""


@on_unix
def test_killed_writers_lose_nothing_that_they_reported():
    """After kill -9 at any moment each reported row is there, and each row is whole."""
    reported = {}
    rng = random.Random(1)
    for seed in range(8):
        process = start(KILLED, seed)
        process.stdout.readline()
        time.sleep(rng.uniform(0, 0.15))
        process.send_signal(signal.SIGKILL)
        reported[seed] = int((process.communicate()[0].split() or [50])[-1])
    open_sink().save_items("t", [{"run": 99, "n": 0, "text": "0"}])
    header, *rows = read()
    position = {name: at for at, name in enumerate(header)}
    found = {}
    for row in rows:
        assert len(row) <= len(header)
        run, n = int(row[position["run"]]), int(row[position["n"]])
        assert row[position["text"]] == ("" if run == 99 else '"q\n,' * 500) + str(n)
        found.setdefault(run, []).append(n)

    assert found.pop(99) == [0]
    for seed, count in reported.items():
        assert found[seed] == list(range(len(found[seed])))
        assert len(found[seed]) >= count


TOGETHER = """
me = int(sys.argv[1])
for k in range(60):
    rows = [{"me": me, "n": 10 * k + i, "text": "x\\n" * (i * 30)} for i in range(10)]
    if k % 20 == me:
        rows[3] = {"only%d_%d" % (me, k): "y", **rows[3]}
    assert sink.save_items("t", rows) == {}
"""


def test_several_processes_write_one_file():
    """Rows of processes that share a file are whole and in order, also when columns are added."""
    processes = [start(TOGETHER, me) for me in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    with Path("t.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))

    assert set(rows[0]) == {"me", "n", "text"} | {
        f"only{me}_{k}" for me in range(4) for k in range(60) if k % 20 == me
    }
    for me in range(4):
        mine = [row for row in rows if row["me"] == str(me)]
        assert [int(row["n"]) for row in mine] == list(range(600))
        assert all(row["text"] == "x\n" * (int(row["n"]) % 10 * 30) for row in mine)
        assert [row["n"] for row in mine if "y" in row.values()] == [
            str(10 * k + 3) for k in range(60) if k % 20 == me
        ]
    assert len(rows) == 2400


FULL = """
import json, resource
def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

def attempt(rows):
    try:
        return sink.save_items("t", rows)
    except Exception as exc:
        return "%s: %s" % (type(exc).__name__, exc)

answers = [attempt([{"a": n} for n in range(1000)])]
before = open("t.csv", "rb").read()
limit(len(before) + 2000)
answers.append(attempt([{"a": n} for n in range(1000, 3000)]))
kept = [open("t.csv", "rb").read() == before]
limit(100)
answers.append(attempt([{"b": n} for n in range(10)]))
kept.append(open("t.csv", "rb").read() == before)
limit(-1)
answers.append(attempt([{"a": n} for n in range(1000, 3000)]))
print(json.dumps([answers, kept]))
"""


@on_unix
def test_full_disk_refuses_the_whole_batch():
    """A batch for which there is no room is raised, not half stored; later ones go on."""
    answers, kept = json.loads(start(FULL).communicate()[0])

    why = f"PipelineError: {Path('t.csv').absolute()} cannot be written: File too large"
    assert answers == [{}, why, why, {}]
    assert kept == [True, True]
    assert [int(one) for (one,) in read()[1:]] == list(range(3000))
    assert names() == ["t.csv", "t.csv.lock"]
