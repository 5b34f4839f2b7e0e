from __future__ import annotations

import importlib.util
import json
import math
import socket
import subprocess
import sys
import textwrap
import time as clock
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum
from http import HTTPStatus
from pathlib import Path, PurePosixPath, PureWindowsPath
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import pytest
import scrapy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from itemadapter import ItemAdapter

from netspy_scrapy.dumps.codec import (
    MAX_DEPTH,
    TAG,
    ClassResolver,
    Unencodable,
    decode_line,
    encode_line,
    encode_line_lossy,
)
from netspy_scrapy.exceptions import DumpError
from netspy_scrapy.items import Item


class Colour(Enum):
    RED = "red"
    CRIMSON = "red"  # noqa: PIE796 - an alias
    BLUE = ("a", "tuple")


class Level(IntEnum):
    LOW = 1


class Access(Flag):
    READ = 1
    WRITE = 2


@dataclass
class Price:
    """Its ``__post_init__`` must not run a second time."""

    amount: int
    currency: str = "EUR"
    tags: list[str] = field(default_factory=list)

    def __post_init__(self):
        self.amount *= 100


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    name: str = field(init=False, default="origin")


@attrs.frozen
class Author:
    name: str
    _born: date
    links: tuple[str, ...] = ()


class Book(scrapy.Item):
    title = scrapy.Field()
    author = scrapy.Field()


class NewsItem(Item):
    pass


class Text(str):
    __slots__ = ()


class NotATime(datetime):
    """Like pandas' NaT: a datetime that equals nothing."""

    __hash__ = datetime.__hash__

    def __eq__(self, other):
        return False


class Unreadable(scrapy.Item):
    title = scrapy.Field()

    def __iter__(self):
        raise RuntimeError("no")

    def keys(self):
        raise RuntimeError("no")

    def __repr__(self):
        raise RuntimeError("no repr either")


def round_trip(value):
    line = encode_line({"value": value})

    assert len(line.splitlines()) == 1
    return decode_line(line.encode("utf-8").decode("utf-8"))["value"]


def shape(value):
    """Return what makes *value* what it is, with its type, so that NaN equals NaN."""
    inner = value
    if ItemAdapter.is_item(value):
        inner = [(shape(key), shape(one)) for key, one in ItemAdapter(value).items()]
    elif isinstance(value, (list, tuple)):
        inner = [shape(one) for one in value]
    elif isinstance(value, (set, frozenset)):
        inner = sorted((shape(one) for one in value), key=repr)
    elif isinstance(value, (datetime, time)):
        inner = (value.isoformat(), value.fold)
    elif isinstance(value, (float, Decimal)):
        inner = repr(value)
    return type(value), inner


def test_plain_values_stay_plain_json():
    """A row of JSON values is the line that netspy writes, and that any tool reads."""
    record = {"table": "prices", "data": {"url": "x", "price": 99}}
    line = encode_line(record)

    assert line == '{"table": "prices", "data": {"url": "x", "price": 99}}'
    assert encode_line({"title": "Größe ☃ 😀", "n": [None, True, 1.5, -0.0]}) == (
        '{"title": "Größe ☃ 😀", "n": [null, true, 1.5, -0.0]}'
    )


VALUES = [
    None, True, 0, -1, 2**53 + 1, 10**700, -(7**20_000), 1.1, -0.0, 5e-324, math.nan, math.inf,
    -math.inf, "", "a\u0000b", "\r\n\t\x85\u2028\u2029", "lone \ud800 and \udfff", "\ud83d\ude00",
    "😀", b"", b"\x00\xff", bytearray(b"ab"), [], [[]], (), (1, (2, [3])), {}, {"": None},
    set(), {1, "1", (1, 2)}, frozenset({frozenset({b"x"})}),
    datetime(2025, 3, 1, 12, 30, 15, 123456),  # noqa: DTZ001
    datetime(2025, 10, 26, 2, 30, fold=1),  # noqa: DTZ001
    datetime(2025, 3, 1, tzinfo=timezone.utc),
    datetime(1900, 1, 1, tzinfo=timezone(timedelta(hours=8, minutes=5, seconds=43))),
    date(2025, 2, 28), date.min, time(23, 59, 59, 999999), time(1, 2, fold=1),
    time(1, tzinfo=timezone(timedelta(hours=-3, minutes=-30))),
    timedelta(days=-1, microseconds=1), timedelta.max,
    Decimal("1.10"), Decimal("-0"), Decimal("1E+999"), Decimal("NaN"), Decimal("sNaN12"),
    Decimal("-Infinity"), Decimal("0." + "3" * 60), UUID(int=2**128 - 1),
    Path("a/b c"), PurePosixPath("/x"), PureWindowsPath(r"C:\x:y"), Path("\ud83d\ude00"),
    Colour.RED, Colour.CRIMSON, Colour.BLUE, Level.LOW, Access.READ, Access.READ | Access.WRITE,
    Access(0), HTTPStatus.NOT_FOUND,
    {1: "a", None: "b", (1, 2): "c", b"k": "d", "e": "f", Colour.RED: 1.5, "\ud83d\ude00": 1},
    {TAG: "datetime", "v": "2025-01-01"}, {TAG: None}, {"a": {TAG: {TAG: 1}}},
    Unencodable("<socket>"),
    Price(1, tags=["a"]), Point(1.5, math.inf), {Point(0.0, 0.0): Author("A", date(1999, 1, 1))},
    [Price(1), {"deep": (Author("A", date(1999, 1, 1), ("x",)),)}],
    Book(title="t", author=Author("A", date(1, 1, 1))), Book(),
    NewsItem(url="x", at=date(2025, 1, 1)), NewsItem({1: 2, TAG: 3}),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_types_survive(value):
    """A value comes back equal, and so does its type and that of everything inside it."""
    back = round_trip(value)

    assert shape(back) == shape(value)


OFFSETS = st.none() | st.integers(-1439, 1439).map(lambda m: timezone(timedelta(minutes=m)))
KEYS = st.recursive(
    st.one_of(
        st.text(st.characters()), st.sampled_from([TAG, "v", None, True, *Colour, *Level]),
        st.integers(), st.floats(allow_nan=False), st.decimals(allow_nan=False), st.binary(),
        st.uuids(), st.datetimes(timezones=OFFSETS), st.times(timezones=OFFSETS), st.dates(),
        st.timedeltas(),
    ),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)  # fmt: skip
VALUE = st.recursive(
    KEYS | st.floats() | st.decimals() | st.binary().map(bytearray),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4),
        st.dictionaries(st.sampled_from([TAG, "v", "class", "a"]), inner),
        st.sets(KEYS, max_size=4), st.tuples(inner, inner), st.builds(Point, inner, inner),
        inner.map(lambda title: Book(title=title)),
        st.dictionaries(st.text(), inner, max_size=3).map(NewsItem),
    ),
    max_leaves=12,
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.dictionaries(st.text(st.characters()), VALUE, max_size=4))
def test_every_record_survives(record):
    """Whatever a row is made of, it comes back as it was, from one line of UTF-8."""
    line = encode_line(record)
    lossy, replaced = encode_line_lossy(record)

    assert len(line.splitlines()) == 1
    assert shape(decode_line(line.encode().decode())) == shape(record)
    assert (lossy, replaced) == (line, [])


def test_zone_becomes_offset():
    """A zoned time keeps its instant and its offset; the zone's name is not kept."""
    value = datetime(2025, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
    back = round_trip(value)

    assert back == value
    assert back.utcoffset() == timedelta(hours=2)


def test_subclasses_become_their_base():
    """Subclasses of plain types are kept as the base that they equal."""
    pair = namedtuple("pair", "a b")  # noqa: PYI024 - the untyped kind
    values = [
        Text("x"), pair(1, 2), defaultdict(list, a=[1]), OrderedDict(b=1),
        type("Kind", (int,), {})(5), type("Kind", (list,), {})([1]),
    ]  # fmt: skip
    back = round_trip(values)

    assert back == values
    assert [type(one) for one in back] == [str, tuple, dict, dict, int, list]


def test_subclass_that_equals_nothing_is_refused():
    """A subclass whose plain value is another one (pandas' NaT) is not silently changed."""
    with pytest.raises(DumpError, match="value: cannot keep a value of type NotATime"):
        encode_line({"value": NotATime(2025, 1, 1)})


def test_unknown_type_is_named_with_its_path():
    """A value that cannot be kept is an error that names the field and the type."""
    with socket.socket() as sock:
        record = {"data": {"author": {"conn": sock}}}
        with pytest.raises(DumpError) as caught:
            encode_line(record)
        with pytest.raises(DumpError, match=r"data\.tags\[1\]\[\(1, 2\)\]: cannot keep a value of"):
            encode_line({"data": {"tags": [1, {(1, 2): object()}]}})
        with pytest.raises(DumpError, match=r"data\.author\._born: cannot keep"):
            encode_line({"data": {"author": Author("A", object())}})

    assert str(caught.value) == "data.author.conn: cannot keep a value of type socket"


def test_circles_and_depth_are_refused():
    """A value that contains itself, or is nested without end, is an error and no hang."""
    circle: dict = {"a": []}
    circle["a"].append(circle)
    deep: list = []
    for _ in range(5000):
        deep = [deep]
    shared = [1]

    with pytest.raises(DumpError, match=r"data\.a\[0\]: a dict that contains itself"):
        encode_line({"data": circle})
    with pytest.raises(DumpError, match=f"nested more than {MAX_DEPTH} levels deep"):
        encode_line({"data": deep})
    assert round_trip([shared, shared]) == [[1], [1]]


def test_deepest_allowed_survives():
    """What is nested as deep as allowed, with the widest tags, can be read again."""
    value: object = 1
    for level in range(MAX_DEPTH - 1):
        value = {level: value} if level % 2 else (value,)

    assert round_trip(value) == value


def test_lossy_loses_one_value_only():
    """A value that cannot be kept becomes its repr; all others of the row are unharmed."""
    bad = object()
    record = {
        "table": "t",
        "data": {"ok": Decimal("1.0"), "bad": bad, "list": [1, {bad}], "author": Author(bad, 1)},
    }
    line, replaced = encode_line_lossy(record)
    data = decode_line(line)["data"]

    assert replaced == [
        "data.bad: cannot keep a value of type object",
        "data.list[1][0]: cannot keep a value of type object",
        "data.author.name: cannot keep a value of type object",
    ]
    assert data == {
        "ok": Decimal("1.0"),
        "bad": Unencodable(repr(bad)),
        "list": [1, {Unencodable(repr(bad))}],
        "author": Author(Unencodable(repr(bad)), 1),
    }
    assert encode_line_lossy(decode_line(line)) == (line, [])


def test_lossy_never_raises():
    """Circles, depth, raising items and raising reprs cost the value, not the row."""
    circle: list = []
    circle.append(circle)
    deep: list = []
    for _ in range(5000):
        deep = [deep]
    items = {"u": Unreadable(title="x"), "c": circle, "d": deep, "f": lambda: 1, "n": 1, "t": int}
    line, replaced = encode_line_lossy(items)
    back = decode_line(line)

    assert [why.split(":")[0].split("[")[0] for why in replaced] == ["u", "c", "d", "f", "t"]
    assert back["n"] == 1
    assert back["u"] == Unencodable("<Unreadable whose repr() raised>")


def test_items_are_not_initialised_twice():
    """What ``__post_init__`` made of a field is kept; it does not run again."""
    price = Price(3)

    assert price.amount == 300
    assert round_trip(price).amount == 300


def test_pydantic_items_survive():
    """Pydantic models come back as they were, whatever their validators and aliases."""
    pydantic = pytest.importorskip("pydantic", reason="runs where pydantic is installed")

    class Sub(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(frozen=True)
        at: datetime

    class Model(pydantic.BaseModel):
        url: str = pydantic.Field(alias="link")
        subs: list[Sub]
        doubled: int = 1
        _hidden: int = pydantic.PrivateAttr(7)

        @pydantic.field_validator("doubled")
        @classmethod
        def double(cls, value):
            return value * 2

    classes = ClassResolver([Sub, Model])
    model = Model(link="x", subs=[Sub(at=datetime.now(timezone.utc))], doubled=4)
    back = decode_line(encode_line({"m": model}), classes)["m"]

    assert back == model
    assert (back.doubled, back._hidden, type(back.subs[0])) == (8, 7, Sub)


def item_line(cls, **fields):
    return json.dumps(
        {"v": {TAG: "item", "class": f"{cls.__module__}:{cls.__qualname__}", "v": fields}}
    )


def test_class_that_got_a_field_is_called():
    """A field that the class has got since the dump gets its default."""
    back = decode_line(item_line(Price, amount=1))["v"]

    assert back == Price(1)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (item_line(Price, amount=1, gone=2), "has no field 'gone' any more"),
        (item_line(Price, currency="EUR"), "cannot be built: TypeError"),
        (item_line(Book, pages=1), "has no field 'pages' any more"),
    ],
)
def test_item_whose_class_changed_is_an_error(line, said):
    """A field with no place in the class any more is named, not dropped."""
    with pytest.raises(DumpError, match=said):
        decode_line(line)


def test_lines_never_import(tmp_path, monkeypatch):
    """A line that names a module which is not imported does not get it imported."""
    (tmp_path / "evil_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    line = '{"v": {"$netspy": "item", "class": "evil_module:Thing", "v": {}}}'

    with pytest.raises(DumpError, match="evil_module:Thing is not known here: import its module"):
        decode_line(line)
    assert "evil_module" not in sys.modules


@pytest.mark.parametrize(
    "name",
    ["subprocess:Popen", "collections:defaultdict", "os:system", "json:JSONEncoder.__init__"],
)
def test_only_items_and_enums_are_built(name):
    """A line cannot have objects of just any class made, or functions called."""
    for tag, value in (("item", {}), ("enum", "x"), ("flag", 1)):
        with pytest.raises(DumpError, match=r"neither an Enum nor an item|not known here"):
            decode_line(json.dumps({"v": {TAG: tag, "class": name, "v": value}}))


def test_registered_classes_are_found():
    """A registered class is found under its own name, or under the one that lines have."""

    class Local(scrapy.Item):
        title = scrapy.Field()

    line = encode_line({"v": Local(title="x")})
    moved = line.replace(f"{Local.__module__}:", "old.place:")

    with pytest.raises(DumpError, match="register the class"):
        decode_line(line)
    assert type(decode_line(line, ClassResolver([Local]))["v"]) is Local
    classes = ClassResolver()
    classes.register(Local, f"old.place:{Local.__qualname__}")
    assert decode_line(moved, classes)["v"] == Local(title="x")
    with pytest.raises(DumpError, match="neither an Enum nor an item"):
        classes.register(int)


def test_classes_of_a_script_are_found_by_file(tmp_path):
    """What a script dumps while it is ``__main__`` is read where it is imported as a module."""
    script = tmp_path / "my:spider.py"
    script.write_text(
        textwrap.dedent("""
        from dataclasses import dataclass
        from netspy_scrapy.dumps.codec import decode_line, encode_line

        class Outer:
            @dataclass
            class Row:
                n: int

        if __name__ == "__main__":
            line = encode_line({"row": Outer.Row(3)})
            assert decode_line(line)["row"] == Outer.Row(3)
            print(line)
        """)
    )
    run = [sys.executable, script]
    line = subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip()
    with pytest.raises(DumpError, match="not known here"):
        decode_line(line)
    spec = importlib.util.spec_from_file_location("loaded_spider", script)
    module = importlib.util.module_from_spec(spec)
    sys.modules["loaded_spider"] = module
    try:
        spec.loader.exec_module(module)

        assert f"{script}:Outer.Row" in line
        assert decode_line(line)["row"] == module.Outer.Row(3)
    finally:
        del sys.modules["loaded_spider"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"a": 1', "not JSON"),
        ("", "not JSON"),
        ("[1]", "not a JSON object but a list"),
        ('{"$netspy": "set", "v": [1]}', "not a JSON object but a set"),
        ('{"v": {"$netspy": "unheard"}}', "not a valid 'unheard'"),
        ('{"v": {"$netspy": "unheard", "v": 1}}', "names no type that is known here"),
        ('{"v": {"$netspy": 5, "v": 1}}', "names no type"),
        ('{"v": {"$netspy": ["set"], "v": 1}}', "not a valid"),
        ('{"v": {"$netspy": "datetime", "v": "soon"}}', "not a valid 'datetime'"),
        ('{"v": {"$netspy": "decimal", "v": "x"}}', "not a valid 'decimal'"),
        ('{"v": {"$netspy": "set", "v": [[1]]}}', "not a valid 'set'"),
        ('{"v": {"$netspy": "bytes", "v": "*"}}', "not a valid 'bytes'"),
        ('{"v": {"$netspy": "enum", "class": "http:HTTPStatus", "v": "X"}}', "no member 'X'"),
        ('{"v": {"$netspy": "enum", "v": "X"}}', "not a valid 'enum'"),
        ('{"v": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deep"),
        ('{"v": ' + "1" * 10_000 + "}", "not JSON"),
    ],
    ids=lambda value: value[:40],
)
def test_wrong_lines_are_dump_errors(line, said):
    """Whatever stands in a line, reading it ends in a record or in a DumpError."""
    with pytest.raises(DumpError, match=said):
        decode_line(line)


def test_foreign_lines_are_read():
    """A byte order mark, NaN and escapes of other tools are no obstacle."""
    assert decode_line('\ufeff{"a": "\\u00e9", "b": [1e3]}\r\n') == {"a": "é", "b": [1000.0]}
    assert math.isnan(decode_line('{"a": NaN}')["a"])


@pytest.mark.timed
def test_a_line_is_quick():
    """A batch of 5,000 rows is encoded in well under a second."""
    row = {"url": "https://example.com/1", "price": 99, "title": "é" * 50, "tags": ["a", "b"]}
    start = clock.perf_counter()
    for _ in range(5000):
        encode_line_lossy({"table": "t", "data": row})

    assert clock.perf_counter() - start < 2
