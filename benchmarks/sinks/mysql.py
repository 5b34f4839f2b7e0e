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
    "CREATE TABLE {table} (id BIGINT AUTO_INCREMENT PRIMARY KEY, url VARCHAR(191) NOT NULL UNIQUE,"
    " title VARCHAR(80), price DOUBLE, qty INT, category VARCHAR(64), descr TEXT, seen DATETIME,"
    " flag TINYINT) CHARACTER SET utf8mb4"
)


@contextmanager
def bench():
    """Yield what ``run.py`` needs: ``ways``, ``reset(table)``, ``count(table)``."""
    options = ("--innodb-buffer-pool-size=512M",
               "--max-allowed-packet=64M")  # fmt: skip
    with MariaDB(*options) as server:
        db = server.connect(user="root", password=b"", autocommit=False, local_infile=True,
                            client_flag=CLIENT.FOUND_ROWS)  # fmt: skip
        cursor = db.cursor()

        def reset(table):
            cursor.execute(f"DROP TABLE IF EXISTS {table}")
            cursor.execute(TABLE.format(table=table))
            db.commit()

        def count(table):
            db.commit()
            cursor.execute(f"SELECT COUNT(*) FROM {table}")
            return cursor.fetchone()[0]

        sink = _ours(server)
        yield SimpleNamespace(reset=reset, count=count, ways={
            "MysqlPipeline": lambda table, batch: len(sink.save_items(table, batch)),
            "netspy's MysqlPipeline": _netspys(server),
            "PyMySQL, LOAD DATA": lambda table, batch: _load(db, cursor, table, batch),
            "PyMySQL, executemany": lambda table, batch: _executemany(db, cursor, table, batch),
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
    return lambda table, batch: 0 if theirs.save_items(table, batch) else len(batch)


def _load(db, cursor, table, batch):
    cursor.execute(f"CREATE TEMPORARY TABLE IF NOT EXISTS stage LIKE {table}")
    cursor.execute("TRUNCATE stage")
    with tempfile.NamedTemporaryFile("w", suffix=".tsv", encoding="utf-8") as file:
        file.write("".join("\t".join(map(_text, row)) + "\n" for row in tuples(batch)))
        file.flush()
        cursor.execute(
            f"LOAD DATA LOCAL INFILE '{file.name}' INTO TABLE stage CHARACTER SET utf8mb4 ({NAMES})"
        )
    cursor.execute(
        f"INSERT INTO {table} ({NAMES}) SELECT {NAMES} FROM stage ON DUPLICATE KEY UPDATE {UPDATES}"
    )
    db.commit()
    return 0


def _text(value):
    if value is None:
        return "\\N"
    return str(int(value)) if isinstance(value, bool) else _escaped(str(value))


def _executemany(db, cursor, table, batch):
    marks = ", ".join(["%s"] * len(COLUMNS))
    try:
        cursor.executemany(
            f"INSERT INTO {table} ({NAMES}) VALUES ({marks}) ON DUPLICATE KEY UPDATE {UPDATES}",
            tuples(batch),
        )
    except pymysql.Error:
        db.rollback()
        return len(batch)
    db.commit()
    return 0


def _escaped(text):
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")
