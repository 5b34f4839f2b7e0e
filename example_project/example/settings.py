"""Settings of the example: Scrapy's own, and one line that adds netspy_scrapy."""

from pathlib import Path

OUTPUT = Path(__file__).resolve().parent.parent / "output" / "scrapy"

BOT_NAME = "example"
SPIDER_MODULES = ["example.spiders"]

# The whole set: status policy, retries, politeness to each domain, dumps, run summary.
ADDONS = {"netspy_scrapy.Addon": 500}

# Sinks run in this order, and each stores in batches of its own.
ITEM_PIPELINES = {
    "netspy_scrapy.pipelines.sqlite.SqlitePipeline": 300,
    "netspy_scrapy.pipelines.csv.CsvPipeline": 310,
}
SQLITE_PATH = str(OUTPUT / "books.db")
CSV_OUTPUT_DIR = str(OUTPUT)

# What could not be fetched or stored is kept beside the results, not in the working folder.
FAILED_REQUEST_PATH = str(OUTPUT / "failed_requests.jsonl")
FAILED_ITEM_PATH = str(OUTPUT / "failed_items.jsonl")

# The shop asks crawlers to leave its baskets alone.
ROBOTSTXT_OBEY = True

# The page that always answers 500 is given up after the third attempt.
SPIDER_MAX_RETRY_TIMES = 2
# The first retry waits up to 0.2 s, the second up to 0.4 s; a Retry-After header goes before.
RETRY_BACKOFF = 0.2

# One line a fact; DEBUG would also name each page.
LOG_LEVEL = "INFO"
