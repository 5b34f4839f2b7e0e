"""One crawl of quick pages and of pages whose callback computes; tells when each were done."""

from __future__ import annotations

import argparse
import hashlib
import time

import scrapy
from child import crawl, tell
from common import ADDON

arguments = argparse.ArgumentParser()
arguments.add_argument("--url", required=True, help="with {n}")
arguments.add_argument("--pages", type=int, required=True)
arguments.add_argument("--heavy", type=int, required=True)
arguments.add_argument("--ms", type=float, required=True)
arguments.add_argument("--threads", type=int, required=True)
options = arguments.parse_args()


def rounds_for(ms):
    """Return how many rounds of the key derivation take *ms* here, alone."""
    begun = time.perf_counter()
    hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 100_000)
    return max(1, int(100_000 * ms / 1000 / (time.perf_counter() - begun)))


class Spider(scrapy.Spider):
    name = "callbacks"
    rounds = rounds_for(options.ms)

    async def start(self):
        self.begun = time.monotonic()
        every = max(1, options.pages // options.heavy) if options.heavy else 0
        for n in range(options.pages):
            yield scrapy.Request(options.url.format(n=n), self.quick)
            if every and n % every == 0 and n // every < options.heavy:
                url = options.url.format(n=n).replace("127.0.0.1", "127.0.0.2")
                yield scrapy.Request(url, self.heavy)

    def quick(self, response):
        self.last = time.monotonic()

    def heavy(self, response):
        hashlib.pbkdf2_hmac("sha256", response.body, b"salt", self.rounds)

    def closed(self, reason):
        tell({"quick": self.last - self.begun, "end": time.monotonic() - self.begun})


if __name__ == "__main__":
    threads = {"NETSPY_CALLBACK_THREADS": options.threads, "NETSPY_BLOCK_WARNING": 0}
    crawl(Spider, {**ADDON, **threads, "CONCURRENT_REQUESTS": 32})
