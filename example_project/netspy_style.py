"""A spider as netspy users write it; only the import is new.

``python netspy_style.py`` serves the bookshop itself and crawls it;
``python netspy_style.py http://127.0.0.1:8000/`` crawls one that runs.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bookshop import serve

import netspy_scrapy as mw

OUTPUT = Path(__file__).resolve().parent / "output" / "netspy_style"
SQLITE = "netspy_scrapy.pipelines.sqlite.SqlitePipeline"
CSV = "netspy_scrapy.pipelines.csv.CsvPipeline"


class BookItem(mw.Item):
    """A book; a second one with the same number is skipped."""

    __table_name__ = "books"
    __unique_key__ = ["number"]


class ListingItem(mw.Item):
    """A link of a list page: what there is to fetch."""

    __table_name__ = "listings"
    __unique_key__ = ["url"]


class ListingUpdate(mw.UpdateItem):
    """What became of a link: changes the row that has the same url."""

    __table_name__ = "listings"
    __update_key__ = ["url"]


class BooksSpider(mw.AirSpider):
    """Pages through the list, fetches each book, and notes what became of each link."""

    __custom_setting__ = {
        "SPIDER_THREAD_COUNT": 8,
        "SPIDER_MAX_RETRY_TIMES": 2,
        "RETRY_BACKOFF": 0.2,
        "ITEM_PIPELINES": [SQLITE, CSV],
        "SQLITE_PATH": str(OUTPUT / "books.db"),
        "CSV_OUTPUT_DIR": str(OUTPUT),
        "FAILED_REQUEST_PATH": str(OUTPUT / "failed_requests.jsonl"),
        "FAILED_ITEM_PATH": str(OUTPUT / "failed_items.jsonl"),
    }

    def __init__(self, url, **kwargs):
        super().__init__(**kwargs)
        self.url = url

    def start_requests(self):
        yield mw.Request(self.url, page=1)

    def download_midware(self, request):
        request.headers = {"Accept-Language": "en"}
        return request

    def validate(self, request, response):
        if "</html>" not in response.text:
            raise mw.ValidationError("the page is cut off")  # it is fetched again

    def parse(self, request, response):
        """A list page: its books, then the next page."""
        self.logger.info("list page {}", request.page)
        for link in response.css(".books h3 a"):
            url = response.urljoin(link.attrib["href"])
            listing = ListingItem()
            listing.url = url
            listing.page = request.page
            listing.state = "listed"
            listing.pipelines = [SQLITE]  # a CSV file could not take the update that follows
            yield listing
            yield mw.Request(url, callback=self.parse_book)
        following = response.css("a.next::attr(href)").extract_first()
        if following:
            # Smaller goes first: the list is read to its end before the books.
            yield mw.Request(response.urljoin(following), priority=100, page=request.page + 1)

    def parse_book(self, request, response):
        book = BookItem()
        book.number = int(response.css("article::attr(data-id)").extract_first())
        book.url = response.url
        book.title = response.css("h1::text").extract_first()
        book.author = response.css(".author span::text").extract_first()
        book.category = response.css("td.category::text").extract_first()
        price = response.css(".price::text").extract_first()
        book.currency = price[0]
        book.price = float(price[1:].replace(",", ""))
        book.rating = int(response.css(".book .rating::attr(data-rating)").extract_first())
        book.stock = int(response.re_first(r"\((\d+) available\)", default="0"))
        book.isbn = response.css(".isbn::text").extract_first()
        book.description = response.css(".description::text").extract_first()
        yield book
        yield self.outcome(request, "stored")

    def failed_request(self, request, response):
        """A page that failed for good: after the last retry, or at once (404)."""
        status = response.status_code if response is not None else "no answer"
        yield self.outcome(request, f"failed: {status}")

    def outcome(self, request, state):
        update = ListingUpdate()
        update.url = request.url
        update.state = state
        update.pipelines = [SQLITE]
        return update


if __name__ == "__main__":
    if len(sys.argv) > 1:
        BooksSpider(sys.argv[1]).start()
    else:
        with serve() as shop:
            BooksSpider(shop.url).start()
