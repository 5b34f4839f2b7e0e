"""One crawl whose callbacks yield many items into one sink; reports the peak of its memory."""

from __future__ import annotations

import argparse
import csv
import sqlite3
import time

import scrapy
from child import crawl, tell
from common import ADDON
from memory import Peak

SINKS = {
    "sqlite": "netspy_scrapy.pipelines.sqlite.SqlitePipeline",
    "csv": "netspy_scrapy.pipelines.csv.CsvPipeline",
}

arguments = argparse.ArgumentParser()
arguments.add_argument("--url", required=True, help="with {n}")
arguments.add_argument("--sink", choices=[*SINKS, "none", "list"], required=True)
arguments.add_argument("--marks", required=True, help="numbers of items, with commas")
arguments.add_argument("--per-page", type=int, required=True)
options = arguments.parse_args()
marks = [int(mark) for mark in options.marks.split(",")]


class Memory(Peak):
    """The peak, each time that so many items have passed."""

    def __init__(self):
        self.items = 0
        self.at = {}

    def begin(self):
        self.started = time.monotonic()
        super().begin()

    def count(self):
        self.items += 1
        if self.items in marks:
            self.at[self.items] = self.growth_mb()


memory = Memory()


class LookPipeline:
    """Stands behind the sink."""

    def process_item(self, item):
        memory.count()
        return item


class KeepPipeline:
    """Keeps all items to the end, as a control: this is what the measurement shows then."""

    kept: list = []  # noqa: RUF012 - one per process, and there is one crawl

    def process_item(self, item):
        self.kept.append(item)
        return item


class ItemsSpider(scrapy.Spider):
    name = "items"

    async def start(self):
        memory.begin()
        for page in range(-(-marks[-1] // options.per_page)):
            yield scrapy.Request(options.url.replace("{n}", str(page)), cb_kwargs={"page": page})

    def parse(self, response, page):
        title = response.css("title::text").get()
        first = page * options.per_page
        for number in range(first, min(first + options.per_page, marks[-1])):
            yield {
                "number": number,
                "url": f"{response.url}#{number}",
                "title": f"{title}, row {number}",
                "author": f"author {number % 997}",
                "price": number / 7,
                "text": f"row {number} " * 20,
                "tags": f"a{number % 11}, b{number % 13}",
                "in_stock": number % 2,
            }


def _stored():
    """Return how many different rows are in the output."""
    if options.sink == "sqlite":
        with sqlite3.connect("items.db") as database:
            return database.execute("SELECT count(DISTINCT number) FROM items").fetchone()[0]
    if options.sink == "csv":
        with open("items.csv", encoding="utf-8", newline="") as file:  # noqa: PTH123
            return len({row["number"] for row in csv.DictReader(file)})
    return memory.items


def main():
    pipelines = {LookPipeline: 900}
    if options.sink != "none":
        pipelines[SINKS.get(options.sink, KeepPipeline)] = 300
    crawl(ItemsSpider, {**ADDON, "ITEM_PIPELINES": pipelines})
    found = {
        "growth_mb": {**memory.at, "end": memory.growth_mb()},
        "items": memory.items,
        "seconds": time.monotonic() - memory.started,
    }
    found["stored"] = _stored()  # after the memory, since it needs some itself
    tell(found)


main()
