"""MysqlPipeline beside netspy's and beside PyMySQL, on a MariaDB of its own."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from types import SimpleNamespace

import pymysql
from pymysql.constants import CLIENT
from rows import COLUMNS, tuples
from scrapy.settings import Settings

from netspy_scrapy.pipelines.mysql import MysqlPipeline
from tests.servers.mariadb import MariaDB

NAMES = ", ".join(COLUMNS)
UPDATES = ", ".join(f"{name} = VALUES({name})" for name in COLUMNS if name != "url")
TABLE = (
    "CREATE TABLE items (id BIGINT AUTO_INCREMENT PRIMARY KEY, url VARCHAR(191) NOT NULL UNIQUE,"
    " title VARCHAR(80), price DOUBLE, qty INT, category VARCHAR(64), descr TEXT, seen DATETIME,"
    " flag TINYINT) CHARACTER SET utf8mb4"
)
ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n"})


@contextmanager
def bench():
    """Yield what ``run.py`` needs: ``ways``, ``reset()``, ``count()``."""
    options = ("--innodb-buffer-pool-size=512M",
               "--max-allowed-packet=64M")  # fmt: skip
    with MariaDB(*options) as server:
        db = server.connect(user="root", password=b"", autocommit=False, local_infile=True,
                            client_flag=CLIENT.FOUND_ROWS)  # fmt: skip
        cursor = db.cursor()

        def reset():
            cursor.execute("DROP TABLE IF EXISTS items")
            cursor.execute(TABLE)
            db.commit()

        def count():
            db.commit()
            cursor.execute("SELECT COUNT(*) FROM items")
            return cursor.fetchone()[0]

        sink = _ours(server)
        yield SimpleNamespace(reset=reset, count=count, ways={
            "MysqlPipeline": lambda batch: len(sink.save_items("items", batch)),
            "netspy's MysqlPipeline": _netspys(server),
            "PyMySQL, LOAD DATA": lambda batch: _load(db, cursor, batch),
            "PyMySQL, executemany": lambda batch: _executemany(db, cursor, batch),
        })  # fmt: skip
        sink.close()


def _ours(server):
    sink = MysqlPipeline()
    settings = {**server.settings, "MYSQL_USER": "root", "MYSQL_PASSWORD": ""}
    sink.bind(SimpleNamespace(settings=Settings(settings)))
    sink.open()
    return sink


def _netspys(server):
    try:
        from netspy import setting  # noqa: PLC0415 - may be missing
        from netspy.pipelines.mysql import MysqlPipeline as Theirs  # noqa: PLC0415
    except ImportError:
        return None
    setting.apply({"LOG_LEVEL": "CRITICAL", "MYSQL_UPDATE_ON_DUPLICATE": True})
    theirs = Theirs(host="127.0.0.1", port=server.port, user="root", password="",
                    database="spider")  # fmt: skip
    return lambda batch: 0 if theirs.save_items("items", batch) else len(batch)


def _load(db, cursor, batch):
    cursor.execute("CREATE TEMPORARY TABLE IF NOT EXISTS stage LIKE items")
    cursor.execute("TRUNCATE stage")
    with tempfile.NamedTemporaryFile("w", suffix=".tsv", encoding="utf-8") as file:
        file.write("".join("\t".join(map(_text, row)) + "\n" for row in tuples(batch)))
        file.flush()
        cursor.execute(
            f"LOAD DATA LOCAL INFILE '{file.name}' INTO TABLE stage CHARACTER SET utf8mb4 ({NAMES})"
        )
    cursor.execute(
        f"INSERT INTO items ({NAMES}) SELECT {NAMES} FROM stage ON DUPLICATE KEY UPDATE {UPDATES}"
    )
    db.commit()
    return 0


def _text(value):
    if value is None:
        return "\\N"
    return str(int(value)) if isinstance(value, bool) else str(value).translate(ESCAPES)


def _executemany(db, cursor, batch):
    marks = ", ".join(["%s"] * len(COLUMNS))
    try:
        cursor.executemany(
            f"INSERT INTO items ({NAMES}) VALUES ({marks}) ON DUPLICATE KEY UPDATE {UPDATES}",
            tuples(batch),
        )
    except pymysql.Error:
        db.rollback()
        return len(batch)
    db.commit()
    return 0
