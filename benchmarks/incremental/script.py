"""What a script does: aiohttp, a semaphore, ETags in a JSON file; started by run.py."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from pathlib import Path

import aiohttp
from child import tell

TITLE = re.compile(rb"<title>(.*?)</title>")


async def crawl(options):
    state = Path(options.state) / "etags.json"
    known = json.loads(state.read_text()) if state.exists() else {}
    semaphore = asyncio.Semaphore(options.concurrency)
    parsed = 0

    async def fetch(session, url):
        nonlocal parsed
        headers = {"If-None-Match": known[url]["etag"]} if url in known else {}
        async with semaphore, session.get(url, headers=headers) as response:
            if response.status == 304:
                return
            body = await response.read()
        known[url] = {"etag": response.headers["ETag"], "title": TITLE.search(body)[1].decode()}
        parsed += 1

    connector = aiohttp.TCPConnector(limit=options.concurrency)
    async with aiohttp.ClientSession(connector=connector) as session:
        urls = [options.url.replace("{n}", str(number)) for number in range(options.pages)]
        await asyncio.gather(*(fetch(session, url) for url in urls))
    fresh = state.with_suffix(".new")
    fresh.write_text(json.dumps(known))
    fresh.replace(state)
    return parsed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--pages", type=int, required=True)
    parser.add_argument("--state", required=True)
    parser.add_argument("--concurrency", type=int, required=True)
    options = parser.parse_args()
    tell({"parsed": asyncio.run(crawl(options))})


if __name__ == "__main__":
    main()
