"""MongoPipeline, ElasticsearchPipeline and KafkaPipeline beside the drivers that they use.

::

    python benchmarks/sinks_documents/run.py [--rows 50000] [--batch 5000] [--runs 5]
                                             [--only mongo,elasticsearch,kafka]

Rows of eight fields go in batches to the servers of the tests: through the sink, through the
driver's own call with the same batches (insert_many, helpers.bulk, produce and flush with each
report looked at), and through netspy's pipeline if netspy is there. ``5 bad`` is the sink with five
rows that the server refuses.

Figures are rows per second. The servers are those of the tests and work on the same processors, so
the figures say little of others, and the ratios more. *CPU* is the processor time that this process
used for it, as a share of the driver's: what the sink adds, however slow the server is.
"""

# ruff: noqa: PLC0415 - a part that is left out needs no driver
from __future__ import annotations

import datetime as dt
import json
import sys
import time
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

from common import Parser, median  # noqa: E402
from report import Report  # noqa: E402
from scrapy.settings import Settings  # noqa: E402

from tests.servers.elasticsearch import Elasticsearch  # noqa: E402
from tests.servers.kafka import Kafka  # noqa: E402
from tests.servers.mongo import Mongo  # noqa: E402

WAYS = ("driver", "sink", "5 bad", "netspy")
#: What the sink has to reach of the speed of the driver's own call.
TARGET = 0.9


def main():
    options = _options()
    report = Report(options)
    rows = []
    for kind in (Mongos, Elastics, Kafkas):
        if kind.name in options.only.split(","):
            server = kind.server()
            server.durable = False  # the disk would be measured
            with report.part(kind.name):
                with server:
                    found = measure(kind(server), report, options)
                rows.append(_row(kind.name, found))
                _compare(report, kind.name, found)
    report.table(
        ("rows/s", "sink", "driver", "CPU of the driver's", "5 bad", "netspy"), rows,
        f"{options.rows:,} rows, medians of {options.runs} runs.",
    )  # fmt: skip
    report.finish()


def _row(name, found):
    cells = {way: f"{median(found[way]):,.0f}" if found[way] else "-" for way in WAYS}
    cpu = f"{median([a / b for a, b in _pairs(found, 'sink cpu', 'driver cpu')]):.2f}"
    return (name, cells["sink"], cells["driver"], cpu, cells["5 bad"], cells["netspy"])


def _compare(report, name, found):
    def ratio(way, base):
        return [one / other for one, other in _pairs(found, way, base)]

    report.compare(
        f"{name}: rows/s", ratio("sink", "driver"), peer="the driver's own call", at_least=TARGET
    )
    report.compare(f"{name}: rows/s", ratio("sink", "netspy"), peer="netspy")
    report.compare(f"{name}, 5 bad rows: of its own clean speed", ratio("5 bad", "sink"))


def _pairs(found, way, base):
    return zip(found[way], found[base], strict=False)


def measure(store, report, options):
    found = defaultdict(list)
    ways = [way for way in WAYS if way != "netspy" or has_peer(store, report)]
    for run, way in report.in_turns(ways, options.runs + 1):
        rows = make_rows(options.rows)
        bad = {}
        if way == "5 bad":
            bad = {n: store.spoil(rows[n]) for n in range(7, options.rows, options.rows // 5)}
        batches = [rows[n : n + options.batch] for n in range(0, len(rows), options.batch)]
        target = f"bench-{run}-{way.replace(' ', '-')}"
        store.prepare(target)
        write = {"driver": store.driver, "netspy": store.netspy}.get(way, store.sink)
        began, used = time.perf_counter(), time.process_time()
        refused = write(target, batches)
        speed = options.rows / (time.perf_counter() - began)
        used = time.process_time() - used
        assert refused == len(bad), f"{way}: {refused} rows refused"
        assert store.count(target) == options.rows - refused, f"{way} lost rows"
        report.progress(run, store.name, way, f"{speed:,.0f} rows/s, {used:.2f} s of CPU")
        if run:  # the first round warms up
            found[way].append(speed)
            found[f"{way} cpu"].append(used)
    return found


def has_peer(store, report):
    """Tell whether netspy is there, and its pipeline runs with the driver that is."""
    if not find_spec("netspy"):
        report.left_out(f"{store.name}: netspy, which is not installed (pip install netspy)")
        return False
    store.prepare("bench-peer")
    try:
        store.netspy("bench-peer", [make_rows(1)])
    except (AssertionError, ImportError) as exc:
        report.left_out(f"{store.name}: netspy's pipeline, which does not run here: {exc!r}")
        return False
    return True


def make_rows(count):
    moment = dt.datetime(2026, 1, 1, 12)  # noqa: DTZ001 - as most spiders yield it
    return [
        {
            "url": f"https://example.test/catalog/item-{n}?ref=bench",
            "title": f"Item {n} 标题 'quoted'", "price": n % 1000 + 0.25, "qty": n % 97,
            "category": f"cat-{n % 40}", "description": "lorem ipsum dolor sit amet " * 3 + str(n),
            "seen": moment.replace(second=n % 60), "flag": bool(n & 1),
        }
        for n in range(count)
    ]  # fmt: skip


class Store:
    def __init__(self, server):
        self.server = server
        self._sink = self.pipeline()()
        self._sink.bind(SimpleNamespace(settings=Settings(self.settings())))
        self._sink.open()

    def prepare(self, target):
        pass

    def sink(self, target, batches):
        """Offer the batches as the batcher does: in dicts of the sink's own."""
        return sum(len(self._sink.save_items(target, [dict(r) for r in b])) for b in batches)

    def netspy(self, target, batches):
        from netspy import setting

        setting.apply({**self.settings(), "LOG_LEVEL": "ERROR"})
        pipeline = self.peer()()
        for batch in batches:
            assert pipeline.save_items(target, [dict(row) for row in batch])
        return 0


class Mongos(Store):
    name = "mongo"
    server = Mongo

    def settings(self):
        return {"MONGO_URI": self.server.url, "MONGO_DB": "bench"}

    def pipeline(self):
        from netspy_scrapy.pipelines.mongo import MongoPipeline

        return MongoPipeline

    def peer(self):
        from netspy.pipelines.mongo import MongoPipeline

        return MongoPipeline

    def prepare(self, target):
        from pymongo import MongoClient

        self.client = MongoClient(self.server.url)
        for name in self.client.bench.list_collection_names():
            self.client.bench.drop_collection(name)
        self.client.bench[target].create_index("url", unique=True)

    def spoil(self, row):
        row["url"] = "https://example.test/catalog/item-0?ref=bench"

    def driver(self, target, batches):
        for batch in batches:
            self.client.bench[target].insert_many([dict(row) for row in batch], ordered=False)
        return 0

    def count(self, target):
        return self.client.bench[target].count_documents({})


class Elastics(Store):
    name = "elasticsearch"
    server = Elasticsearch

    def settings(self):
        return {"ELASTICSEARCH_HOSTS": [self.server.url]}

    def pipeline(self):
        from netspy_scrapy.pipelines.elasticsearch import ElasticsearchPipeline

        return ElasticsearchPipeline

    def peer(self):
        from netspy.pipelines.elasticsearch import ElasticsearchPipeline

        return ElasticsearchPipeline

    def prepare(self, target):
        from elasticsearch import Elasticsearch as Client

        self.client = Client(self.server.url, request_timeout=60)
        for name in self.client.indices.get(index="*"):
            self.client.indices.delete(index=name)
        properties = {"qty": {"type": "integer"}, "url": {"type": "keyword"}}
        self.client.indices.create(index=target, mappings={"properties": properties})

    def spoil(self, row):
        row["qty"] = "many"

    def driver(self, target, batches):
        from elasticsearch import helpers

        for batch in batches:
            helpers.bulk(self.client, ({"_index": target, "_source": row} for row in batch))
        return 0

    def count(self, target):
        self.client.indices.refresh(index=target)
        return self.client.count(index=target)["count"]


class Kafkas(Store):
    name = "kafka"
    server = Kafka

    def settings(self):
        return {"KAFKA_BOOTSTRAP_SERVERS": [self.server.url]}

    def pipeline(self):
        from netspy_scrapy.pipelines.kafka import KafkaPipeline

        return KafkaPipeline

    def peer(self):
        from netspy.pipelines.kafka import KafkaPipeline

        return KafkaPipeline

    def spoil(self, row):
        row["description"] = "x" * 1_100_000

    def driver(self, target, batches):
        from confluent_kafka import Producer

        producer = Producer(
            {"bootstrap.servers": self.server.url, "enable.idempotence": True, "linger.ms": 5}
        )
        errors = []

        def report(error, _):
            if error is not None:
                errors.append(error)

        for batch in batches:
            for row in batch:
                text = json.dumps(row, ensure_ascii=False, default=str)
                producer.produce(target, text.encode(), on_delivery=report)
                producer.poll(0)
            producer.flush()
        return len(errors)

    def count(self, target):
        from confluent_kafka import Consumer, TopicPartition

        reader = Consumer({"bootstrap.servers": self.server.url, "group.id": "bench"})
        partitions = reader.list_topics(target, timeout=5).topics[target].partitions
        marks = [
            reader.get_watermark_offsets(TopicPartition(target, one), timeout=5)
            for one in partitions
        ]
        reader.close()
        return sum(high - low for low, high in marks)


def _options():
    parser = Parser(__doc__, runs=5, quick={"rows": 10_000, "batch": 1_000})
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--batch", type=int, default=5_000)
    parser.add_argument("--only", default="mongo,elasticsearch,kafka")
    return parser.parse_args()


if __name__ == "__main__":
    main()
