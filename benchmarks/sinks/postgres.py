"""PostgresPipeline beside netspy's and beside psycopg, on a PostgreSQL of its own."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import psycopg
from rows import COLUMNS, tuples
from scrapy.settings import Settings

from netspy_scrapy.pipelines.postgres import PostgresPipeline
from tests.servers.postgres import Postgres

NAMES = ", ".join(COLUMNS)
UPDATES = ", ".join(f"{name} = EXCLUDED.{name}" for name in COLUMNS if name != "url")
CONFLICT = f"ON CONFLICT (url) DO UPDATE SET {UPDATES}"
TABLE = (
    "CREATE TABLE {table} (id BIGSERIAL PRIMARY KEY, url TEXT NOT NULL UNIQUE, title VARCHAR(80),"
    " price DOUBLE PRECISION, qty INT, category VARCHAR(64), descr TEXT, seen TIMESTAMP,"
    " flag BOOLEAN)"
)
TYPES = ["text", "varchar", "float8", "int4", "varchar", "text", "timestamp", "bool"]


@contextmanager
def bench():
    """Yield what ``run.py`` needs: ``ways``, ``reset(table)``, ``count(table)``."""
    options = ("shared_buffers=256MB", "max_wal_size=4GB")
    with Postgres(*(part for one in options for part in ("-c", one))) as server:
        db = server.connect(autocommit=False)
        # netspy's sink writes the password into a connection string without quoting it.
        db.execute("CREATE ROLE bench LOGIN SUPERUSER PASSWORD 'bench'")
        db.commit()

        def reset(table):
            db.execute(f"DROP TABLE IF EXISTS {table}")
            db.execute(TABLE.format(table=table))
            db.commit()

        def count(table):
            db.commit()
            return db.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0]

        sink = _ours(server)
        yield SimpleNamespace(reset=reset, count=count, ways={
            "PostgresPipeline": lambda table, batch: len(sink.save_items(table, batch)),
            "netspy's PostgresPipeline": _netspys(server),
            "psycopg, COPY binary": lambda table, batch: _copied(db, table, batch, _binary),
            "psycopg, COPY text": lambda table, batch: _copied(db, table, batch, _text),
            "psycopg, executemany": lambda table, batch: _stored(db, table, batch, _executemany),
        })  # fmt: skip
        sink.close()
        db.close()


def _ours(server):
    sink = PostgresPipeline()
    settings = {**server.settings, "POSTGRES_ON_CONFLICT": "update",
                "POSTGRES_CONFLICT_TARGET": ["url"]}  # fmt: skip
    sink.bind(SimpleNamespace(settings=Settings(settings)))
    sink.open()
    return sink


def _netspys(server):
    try:
        from netspy import setting  # noqa: PLC0415 - may be missing
        from netspy.pipelines.postgres import PostgresPipeline as Theirs  # noqa: PLC0415
    except ImportError:
        return None
    setting.apply({"LOG_LEVEL": "CRITICAL", "POSTGRES_ON_CONFLICT": "update",
                   "POSTGRES_CONFLICT_TARGET": ["url"]})  # fmt: skip
    of = server.settings
    theirs = Theirs(
        host=of["POSTGRES_HOST"], port=of["POSTGRES_PORT"], user="bench",
        password="bench", database=of["POSTGRES_DB"],
    )  # fmt: skip
    return lambda table, batch: 0 if theirs.save_items(table, batch) else len(batch)


def _stored(db, table, batch, store):
    try:
        store(db, table, batch)
    except psycopg.Error:
        db.rollback()
        return len(batch)
    db.commit()
    return 0


def _copied(db, table, batch, copy):
    def store(db, table, batch):
        db.execute(
            "CREATE TEMPORARY TABLE IF NOT EXISTS stage ON COMMIT DELETE ROWS AS"
            f" SELECT {NAMES} FROM {table} WITH NO DATA"
        )
        copy(db.cursor(), batch)
        db.execute(f"INSERT INTO {table} ({NAMES}) SELECT {NAMES} FROM stage {CONFLICT}")

    return _stored(db, table, batch, store)


def _binary(cursor, batch):
    with cursor.copy(f"COPY stage ({NAMES}) FROM STDIN (FORMAT BINARY)") as pipe:
        pipe.set_types(TYPES)
        for row in tuples(batch):
            pipe.write_row(row)


def _text(cursor, batch):
    with cursor.copy(f"COPY stage ({NAMES}) FROM STDIN") as pipe:
        pipe.write("".join("\t".join(map(_value, row)) + "\n" for row in tuples(batch)))


def _value(value):
    return "\\N" if value is None else _escaped(str(value))


def _executemany(db, table, batch):
    marks = ", ".join(["%s"] * len(COLUMNS))
    with db.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO {table} ({NAMES}) VALUES ({marks}) {CONFLICT}", tuples(batch)
        )


def _escaped(text):
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
