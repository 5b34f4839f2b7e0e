"""netspy-create: what it writes runs, is clean, and never overwrites."""

from __future__ import annotations

import ast
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netspy_scrapy.commands.create import main
from netspy_scrapy.commands.scaffold import class_name, item_text, words_of
from netspy_scrapy.commands.tables import Column, Table
from netspy_scrapy.items import Item

if TYPE_CHECKING:
    from tests.servers.mariadb import MariaDB
    from tests.servers.postgres import Postgres

CREATE = (sys.executable, "-m", "netspy_scrapy.commands.create")
NEWS = '''from datetime import datetime
from decimal import Decimal

import netspy_scrapy as mw


class NewsItem(mw.Item):
    """One row of the table."""

    __table_name__ = "news"
    __unique_key__ = ("url",)

    url: str
    price: Decimal | None
    clicks: int | None
    seen: datetime | None
'''


@pytest.fixture(autouse=True)
def _in_a_folder(folder: Path) -> None:
    """Each test writes into a folder of its own."""


def run(*command: str, cwd: str | Path = ".") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip


def sqlite(script: str, path: str = "news.db") -> str:
    db = sqlite3.connect(path)
    db.executescript(script)
    db.close()
    return path


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Run the command here; return its status and what it said."""
    try:
        status = main(list(arguments))
    except SystemExit as exc:
        status = int(exc.code or 0)
    printed = capsys.readouterr()
    return status, printed.out + printed.err


def item_class(text: str) -> Any:
    """Run the module of an item; it may define nothing else."""
    names: dict[str, Any] = {}
    exec(compile(text, "item.py", "exec"), names)
    found = [one for one in names.values() if isinstance(one, type) and issubclass(one, Item)]
    allowed = {"__builtins__", "mw", "Decimal", "date", "datetime", "time", "timedelta"}
    assert names.keys() - allowed == {found[0].__name__}
    return found[0]


def is_clean(path: Path) -> None:
    """Check a folder as ruff does by default."""
    ruff = shutil.which(
        "ruff", path=os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin"])
    )
    assert ruff, "ruff is in the extra [test]"
    for arguments in (["check"], ["format", "--check"]):
        done = run(ruff, *arguments, "--isolated", "--no-cache", str(path))
        assert done.returncode == 0, done.stdout + done.stderr


# Projects and spiders ----------------------------------------------------------------------------
def test_a_project_runs(site: Any) -> None:
    """A new project has Scrapy's layout, the add-on and robots.txt on, and crawls."""
    done = run(*CREATE, "-p", "shop")

    assert done.returncode == 0, done.stderr
    files = {str(path) for path in Path("shop").rglob("*") if path.is_file()}
    assert files == {
        "shop/README.md", "shop/scrapy.cfg", "shop/shop/__init__.py",
        "shop/shop/items/__init__.py", "shop/shop/settings.py", "shop/shop/spiders/__init__.py",
        "shop/shop/spiders/shop_spider.py",
    }  # fmt: skip
    assert {line.partition(" ")[2] for line in done.stdout.splitlines()[:-1]} == files
    is_clean(Path("shop"))

    spider = Path("shop/shop/spiders/shop_spider.py")
    spider.write_text(spider.read_text().replace("https://example.com", site.url("/page/1")))
    crawled = run(sys.executable, "-m", "scrapy", "crawl", "shop", cwd="shop")
    settings = [
        run(sys.executable, "-m", "scrapy", "settings", "--get", name, cwd="shop").stdout.strip()
        for name in ("ROBOTS_OBEY", "ADDONS")
    ]

    assert crawled.returncode == 0
    assert "ConsolePipeline: rows 1 stored" in crawled.stderr
    assert any(one.path == "/robots.txt" for one in site.log())
    assert settings == ["True", '{"netspy_scrapy.Addon": 500}']


def test_spiders_and_items_find_their_folder_in_a_project() -> None:
    """From any folder of a project, a spider goes to its spiders, an item to its items."""
    run(*CREATE, "-p", "shop")
    spider = run(*CREATE, "-s", "HotNewsSpider", cwd="shop/shop/items")
    item = run(*CREATE, "-i", "hot-news", cwd="shop")
    listed = run(sys.executable, "-m", "scrapy", "list", cwd="shop")

    assert (spider.returncode, item.returncode) == (0, 0), spider.stderr + item.stderr
    assert Path("shop/shop/spiders/hot_news_spider.py").exists()
    assert Path("shop/shop/items/hot_news_item.py").exists()
    assert listed.stdout.split() == ["hot_news", "shop"]
    is_clean(Path("shop"))


def test_an_item_in_a_project_of_scrapys_own_layout() -> None:
    """Where items.py is a module, the item goes beside it."""
    run(sys.executable, "-m", "scrapy", "startproject", "plain")
    done = run(*CREATE, "-i", "news", cwd="plain")

    assert done.returncode == 0, done.stderr
    assert Path("plain/plain/news_item.py").exists()


def test_a_spider_without_a_project_runs(site: Any) -> None:
    """Elsewhere a spider is a script in the present folder."""
    done = run(*CREATE, "-s", "news")
    script = Path("news_spider.py")
    script.write_text(script.read_text().replace("https://example.com", site.url("/page/1")))
    crawled = run(sys.executable, "news_spider.py")

    assert done.stdout == "created news_spider.py\n"
    assert crawled.returncode == 0
    assert "ConsolePipeline: rows 1 stored" in crawled.stderr


def test_the_same_as_a_command_of_scrapy() -> None:
    """`scrapy netspy-create` takes the same options; -s is the spider."""
    done = run(sys.executable, "-m", "scrapy", "netspy-create", "-s", "news", "--set", "A=1")

    assert done.returncode == 0, done.stdout + done.stderr
    assert Path("news_spider.py").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("news", "news"), ("NewsItem", "news"), ("news_item", "news"), ("hot-news", "hot_news"),
        ("HotNewsItem", "hot_news"), ("hot news", "hot_news"), ("HTMLPage", "html_page"),
        ("item", "item"), ("Item", "item"), ("class", "class"), ("新闻", "新闻"), ("a1B2", "a1_b2"),
    ],
)  # fmt: skip
def test_names_that_can_be_used(name: str, words: str) -> None:
    """Any usual way to write a name gives the same file and class."""
    found = words_of(name, "item")

    assert "_".join(found) == words
    assert class_name(found, "item").isidentifier()


@pytest.mark.parametrize(
    "name", ["", "1a", "../x", "a/b", "a;b", "a.b", "_a", "a\nb=1", "a'b", 'a"b', "a\x00", "-"]
)
def test_names_that_cannot(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Other names are refused, and nothing is written."""
    for option in ("--item", "--spider", "--project"):
        status, text = said(capsys, f"{option}={name}")
        assert status == 2
        assert repr(name) in text
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("name", ["json", "scrapy", "Shop", "класс"])
def test_projects_that_could_not_be_imported(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A project must not hide a module, and its name must do for a package."""
    status, text = said(capsys, "-p", name)

    assert status == 2
    assert f"{name!r} cannot be the name of a project" in text
    assert list(Path().iterdir()) == []


# Files that exist --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        (["-s", "news"], "news_spider.py"),
        (["-i", "news"], "news_item.py"),
        (["-p", "shop"], "shop/shop/settings.py"),
    ],
)
def test_nothing_is_overwritten(
    arguments: list[str], path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that exists stays, and none beside it is written, until --force is given."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("mine")
    status, text = said(capsys, *arguments)
    files = [one for one in Path().rglob("*") if one.is_file()]

    assert status == 1
    assert f"nothing written: {path} there already; --force overwrites" in text
    assert files == [Path(path)]
    assert Path(path).read_text() == "mine"

    status, text = said(capsys, *arguments, "--force")

    assert status == 0
    assert Path(path).read_text() != "mine"


def test_a_link_to_nowhere_is_not_followed(capsys: pytest.CaptureFixture[str]) -> None:
    """A symbolic link counts as a file that exists."""
    Path("news_item.py").symlink_to("elsewhere.py")
    status, _ = said(capsys, "-i", "news")

    assert status == 1
    assert not Path("elsewhere.py").exists()


def test_a_folder_that_cannot_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the file."""
    Path("shop").write_text("a file")
    status, text = said(capsys, "-p", "shop")

    assert status == 1
    assert "shop" in text
    assert "Traceback" not in text


# Options -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "required"),
        (["-i", "a", "-s", "b"], "not allowed with"),
        (["-s", "a", "--table", "t"], "--table needs -i NAME"),
        (["-i", "a", "--sqlite", "x.db"], "--table says which table"),
        (["-i", "a", "--table", "t", "--sqlite", "x", "--mysql", "y"], "not allowed with"),
    ],
)
def test_options_that_do_not_go_together(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command line that makes no sense says why."""
    status, printed = said(capsys, *arguments)

    assert status == 2
    assert text in printed


@pytest.mark.parametrize(
    ("option", "url", "expected"),
    [
        ("--mysql", "mysql://u:ge#heim@db/spider", 2),
        ("--mysql", "postgres://u:geheim@db/spider", 2),
        ("--mysql", "mysql://u:geheim@db", 2),
        ("--postgres", "postgres://u:geheim/spider", 2),
        ("--mysql", "mysql://u:geheim@127.0.0.1:1/spider", 1),
        ("--postgres", "postgres://u:geheim@127.0.0.1:1/spider", 1),
    ],
)
def test_urls_that_cannot_be_used(
    option: str, url: str, expected: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error shows no password, and nothing is written."""
    status, text = said(capsys, "-i", "news", "--table", "news", option, url)

    assert status == expected
    assert "heim" not in text
    assert "Traceback" not in text
    assert list(Path().iterdir()) == []


# Tables: SQLite ----------------------------------------------------------------------------------
def test_an_item_of_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Columns become annotated fields, the primary key the unique key."""
    path = sqlite(
        "CREATE TABLE news (url TEXT PRIMARY KEY, price DECIMAL(8,2), clicks INT, seen DATETIME)"
    )
    status, text = said(capsys, "-i", "news", "--table", "news", "--sqlite", path)

    assert (status, text) == (0, "created news_item.py\n")
    assert Path("news_item.py").read_text() == NEWS
    is_clean(Path("news_item.py"))


def test_the_item_is_stored(site: Any) -> None:
    """What is written can be crawled with, and fills the table it came from."""
    sqlite("CREATE TABLE news (url TEXT PRIMARY KEY, title TEXT, n INT)", "items.db")
    run(*CREATE, "-i", "news", "--table", "news", "--sqlite", "items.db")
    Path("spider.py").write_text(
        "import scrapy\nfrom news_item import NewsItem\n"
        "class S(scrapy.Spider):\n"
        "    name = 's'\n"
        f"    start_urls = [{site.url('/page/1')!r}]\n"
        "    custom_settings = {'ITEM_PIPELINES':"
        " {'netspy_scrapy.pipelines.sqlite.SqlitePipeline': 1}}\n"
        "    def parse(self, response):\n"
        "        for n in (1, 2):\n"
        "            yield NewsItem(url='a', title='t', n=n)\n"
    )
    done = run(sys.executable, "-m", "scrapy", "runspider", "spider.py")
    db = sqlite3.connect("items.db")

    assert db.execute("SELECT * FROM news").fetchall() == [("a", "t", 2)], done.stderr
    db.close()


@pytest.mark.parametrize(
    ("columns", "key", "comment"),
    [
        ("a TEXT, b TEXT, PRIMARY KEY (b, a)", '("b", "a")', ""),
        ("id INTEGER PRIMARY KEY, url TEXT UNIQUE", '("url",)', 'Not "id"'),
        ("id INTEGER PRIMARY KEY, url TEXT", '("id",)', ""),
        ("id INT PRIMARY KEY, url TEXT UNIQUE", '("id",)', ""),
        ("a TEXT UNIQUE, b TEXT, c TEXT, UNIQUE (b, c)", '("a",)', ""),
        ("a TEXT", None, "no key"),
    ],
)
def test_which_key_it_is(
    columns: str, key: str | None, comment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The primary key; a number that only the database knows gives way to another unique key."""
    path = sqlite(f"CREATE TABLE t ({columns})")
    said(capsys, "-i", "t", "--table", "t", "--sqlite", path)
    text = Path("t_item.py").read_text()

    assert (f"__unique_key__ = {key}" in text) == (key is not None)
    assert ("__unique_key__" in text) == (key is not None)
    assert comment in text


def test_partial_indexes_and_expressions_are_no_key(capsys: pytest.CaptureFixture[str]) -> None:
    """An index that does not hold for every row as it is stored does not make rows unique."""
    path = sqlite(
        "CREATE TABLE t (a TEXT, b TEXT);"
        "CREATE UNIQUE INDEX i ON t (a) WHERE b IS NULL; CREATE UNIQUE INDEX j ON t (lower(a))"
    )
    said(capsys, "-i", "t", "--table", "t", "--sqlite", path)

    assert "__unique_key__" not in Path("t_item.py").read_text()


def test_names_that_python_cannot_have(capsys: pytest.CaptureFixture[str]) -> None:
    """Columns that cannot be attributes are shown as keys, and can be set that way."""
    names = ["class", "my col", "items", "pipelines", "_x", "1st", 'a"b', "a\nimport os", "ﬁeld"]
    quoted = ", ".join('"' + name.replace('"', '""') + '" TEXT' for name in names)
    table = 'we"ird; drop\n"""table\\'
    path = sqlite(f'CREATE TABLE "{table.replace(chr(34), chr(34) * 2)}" ({quoted}, 标题 TEXT)')
    status, _ = said(capsys, "-i", "odd", "--table", table, "--sqlite", path)
    text = Path("odd_item.py").read_text()
    cls = item_class(text)

    assert status == 0
    assert cls.__table_name__ == table
    assert set(cls.__annotations__) == {"标题"}
    shown = re.findall(r"^    # item\[(.+)\] = \.\.\.", text, re.MULTILINE)
    assert [ast.literal_eval(one) for one in shown] == names
    item = cls()
    for name in names:
        item[name] = 1
    assert set(item) == set(names)
    is_clean(Path("odd_item.py"))


def test_what_the_database_computes_is_no_field(capsys: pytest.CaptureFixture[str]) -> None:
    """A generated column, to which nothing can be written, is only mentioned."""
    path = sqlite("CREATE TABLE t (a INT, b INT AS (a * 2), c INT AS (a) STORED)")
    said(capsys, "-i", "t", "--table", "t", "--sqlite", path)
    text = Path("t_item.py").read_text()

    assert set(item_class(text).__annotations__) == {"a"}
    assert '# "b" is computed by the database' in text
    assert '# "c" is computed by the database' in text


@pytest.mark.parametrize(
    ("script", "table", "message"),
    [
        ("CREATE TABLE news (a)", "nwes", "there is no table 'nwes' in news.db; there are: 'news'"),
        ("CREATE TABLE news (a)", "x' OR 1=1 --", "there is no table"),
        ("", "news", "it has no table at all"),
    ],
)
def test_a_table_that_is_not_there(
    script: str, table: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names those that are."""
    status, text = said(capsys, "-i", "a", "--table", table, "--sqlite", sqlite(script))

    assert status == 1
    assert message in text
    assert not Path("a_item.py").exists()


def test_a_name_in_other_letters(capsys: pytest.CaptureFixture[str]) -> None:
    """If only one table has the name in other letters, that is the table."""
    path = sqlite("CREATE TABLE News (a)")
    said(capsys, "-i", "a", "--table", "news", "--sqlite", path)

    assert '__table_name__ = "News"' in Path("a_item.py").read_text()


def test_a_file_that_is_no_database(capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is not there is not made, and one of another kind is named."""
    Path("text.db").write_text("not a database" * 100)
    missing = said(capsys, "-i", "a", "--table", "t", "--sqlite", "none.db")
    other = said(capsys, "-i", "a", "--table", "t", "--sqlite", "text.db")

    assert missing == (1, "netspy-create: there is no file none.db\n")
    assert other[0] == 1
    assert "text.db cannot be read: file is not a database" in other[1]
    assert not Path("none.db").exists()


texts = st.text(max_size=30)


@given(
    table=texts,
    comment=texts,
    columns=st.lists(
        st.builds(
            Column,
            name=texts,
            type=st.sampled_from(["int", "timestamp", "json", "numeric", "x'\n", ""]),
            nullable=st.booleans(),
            comment=texts,
            numbered=st.booleans(),
            generated=st.booleans(),
        ),
        unique_by=lambda column: column.name,
        max_size=5,
    ),
    keyed=st.booleans(),
)
def test_nothing_that_a_database_says_is_code(
    table: str, comment: str, columns: list[Column], keyed: bool
) -> None:
    """Whatever names and comments hold, the module defines one class with that table and key."""
    primary = [column.name for column in columns][:3] if keyed else []
    cls = item_class(item_text(["x"], Table(table, columns, primary, comment=comment)))

    assert cls.__table_name__ == table
    assert list(cls.__unique_key__) == primary
    assert set(getattr(cls, "__annotations__", {})) <= {column.name for column in columns}


# Tables: servers ---------------------------------------------------------------------------------
COMMENT = '网址 """ \\ \n\timport os  # ' + "long " * 30


def test_an_item_of_a_mysql_table(
    mariadb_server: MariaDB, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns, comments and keys are read, by a URL or by the MYSQL_ settings."""
    with mariadb_server.connect() as db, db.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS create_news")
        cursor.execute(
            "CREATE TABLE create_news (id BIGINT AUTO_INCREMENT PRIMARY KEY COMMENT '编号', "
            "url VARCHAR(200) NOT NULL COMMENT %s, title VARCHAR(200), price DECIMAL(8,2), "
            "day DATE, ok TINYINT(1) NOT NULL, half DOUBLE, raw BLOB, "
            "changed TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, twice INT AS (id * 2) VIRTUAL, "
            "`my col` JSON, UNIQUE KEY u (url), UNIQUE KEY p (title(10))) COMMENT = '新闻'",
            [COMMENT],
        )
    arguments = ["-i", "news", "--table", "create_news"]
    status, said_text = said(capsys, *arguments, "--mysql", mariadb_server.url)
    text = Path("news_item.py").read_text()
    cls = item_class(text)

    assert status == 0, said_text
    assert cls.__table_name__ == "create_news"
    assert cls.__unique_key__ == ("url",)
    assert "    # 新闻\n" in text
    assert "    id: int  # 编号\n" in text
    assert '    # 网址 """ \\ import os # long long' in text
    assert '# "twice" is computed by the database' in text
    assert "title: str | None\n" in text
    assert "price: Decimal | None\n" in text
    assert "day: date | None\n" in text
    assert "ok: int\n" in text
    assert "half: float | None\n" in text
    assert "raw: bytes | None\n" in text
    assert "changed: datetime\n" in text
    assert '# item["my col"] = ...' in text
    is_clean(Path("news_item.py"))

    # The same by the settings of a project, and by netspy's variables.
    run(*CREATE, "-p", "shop")
    lines = [f"{name} = {value!r}\n" for name, value in mariadb_server.settings.items()]
    with Path("shop/shop/settings.py").open("a", encoding="utf-8") as file:
        file.writelines(lines)
    done = run(*CREATE, *arguments, cwd="shop")
    assert done.returncode == 0, done.stderr
    assert Path("shop/shop/items/news_item.py").read_text() == text

    Path("news_item.py").unlink()
    for name, value in mariadb_server.settings.items():
        monkeypatch.setenv(f"NETSPY_{name}", str(value))
    assert said(capsys, *arguments) == (0, "created news_item.py\n")
    assert Path("news_item.py").read_text() == text


def test_tables_that_differ_in_case(
    mariadb_server: MariaDB, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of tables whose names differ in case only, each has its own columns and key."""
    with mariadb_server.connect() as db, db.cursor() as cursor:
        for name, column in (("create_case", "small"), ("Create_Case", "large")):
            cursor.execute(f"DROP TABLE IF EXISTS `{name}`")
            cursor.execute(f"CREATE TABLE `{name}` ({column} INT PRIMARY KEY)")
    for name, column in (("create_case", "small"), ("Create_Case", "large")):
        said(capsys, "-i", "case", "--table", name, "--mysql", mariadb_server.url, "--force")
        text = Path("case_item.py").read_text()
        assert f'__table_name__ = "{name}"' in text
        assert f'__unique_key__ = ("{column}",)' in text
        assert set(item_class(text).__annotations__) == {column}
    status, text = said(capsys, "-i", "x", "--table", "CREATE_CASE", "--mysql", mariadb_server.url)
    assert status == 1
    assert "there is no table 'CREATE_CASE'" in text


def test_mysql_says_why_not(mariadb_server: MariaDB, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong password, and a table that is not there, are named without the password."""
    arguments = ["-i", "news", "--table", "x' OR '1'='1", "--mysql"]
    wrong = mariadb_server.url.replace("crawler:", "crawler:geheim")
    missing = said(capsys, *arguments, mariadb_server.url)
    refused = said(capsys, *arguments, wrong)

    assert (missing[0], refused[0]) == (1, 1)
    assert "there is no table \"x' OR '1'='1\"" in missing[1]
    assert "Access denied for user 'crawler'" in refused[1]
    assert "geheim" not in missing[1] + refused[1]


def test_an_item_of_a_postgres_table(
    postgres_server: Postgres, capsys: pytest.CaptureFixture[str]
) -> None:
    """Columns, comments and keys are read; dropped columns are gone, others' schemas not seen."""
    literal = COMMENT.replace("'", "''")
    with postgres_server.connect() as db:
        db.execute("DROP TABLE IF EXISTS create_news")
        db.execute("CREATE SCHEMA IF NOT EXISTS hidden")
        db.execute("CREATE TABLE IF NOT EXISTS hidden.create_hidden (a int)")
        db.execute(
            "CREATE TABLE create_news (id bigserial PRIMARY KEY, gone int, url text NOT NULL, "
            'lang varchar(2) NOT NULL, "Weird Name" text, price numeric(8,2), seen timestamptz, '
            "tags text[], body jsonb, raw bytea, ok boolean NOT NULL, n int GENERATED ALWAYS AS "
            "IDENTITY, twice int GENERATED ALWAYS AS (1 + 1) STORED, UNIQUE (url, lang))"
        )
        db.execute("ALTER TABLE create_news DROP COLUMN gone")
        db.execute("CREATE UNIQUE INDEX ON create_news (lower(url))")
        db.execute("CREATE UNIQUE INDEX ON create_news (lang) WHERE ok")
        db.execute("COMMENT ON TABLE create_news IS '新闻'")
        db.execute("COMMENT ON COLUMN create_news.lang IS 'two letters'")
        db.execute(f"COMMENT ON COLUMN create_news.url IS '{literal}'")  # type: ignore[arg-type]
    arguments = ["-i", "news", "--table", "create_news", "--postgres", postgres_server.url]
    status, said_text = said(capsys, *arguments)
    text = Path("news_item.py").read_text()
    cls = item_class(text)

    assert status == 0, said_text
    assert cls.__unique_key__ == ("url", "lang")
    assert "    # 新闻\n" in text
    assert "    lang: str  # two letters\n" in text
    assert "id: int  # the database numbers it\n" in text
    assert "price: Decimal | None\n" in text
    assert "seen: datetime | None\n" in text
    assert "tags: list | None\n" in text
    assert "body: dict | list | None\n" in text
    assert "raw: bytes | None\n" in text
    assert "ok: bool\n" in text
    assert '# item["Weird Name"] = ...: str | None' in text
    assert '# "twice" is computed by the database' in text
    assert "gone" not in text
    is_clean(Path("news_item.py"))

    hidden = said(capsys, "-i", "h", "--table", "create_hidden", *arguments[4:])
    assert hidden[0] == 1
    assert "there is no table 'create_hidden'" in hidden[1]


def test_postgres_says_why_not(
    postgres_server: Postgres, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong password is named without it."""
    wrong = postgres_server.url.replace("postgres:", "postgres:geheim", 1)
    status, text = said(capsys, "-i", "news", "--table", "t", "--postgres", wrong)

    assert status == 1
    assert "password authentication failed" in text
    assert "geheim" not in text
