"""A plain Scrapy spider: nothing in it knows of netspy_scrapy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar

from scrapy import Spider
from scrapy.http import Response


@dataclass
class Book:
    """A row of the table ``books``; any kind of item that Scrapy knows will do."""

    __table_name__: ClassVar[str] = "books"

    number: int
    url: str
    title: str
    author: str
    category: str
    currency: str
    price: Decimal
    rating: int
    stock: int
    isbn: str
    description: str


class BooksSpider(Spider):
    """Follows every link of the shop's pages and stores each book.

    ``scrapy crawl books -a url=http://127.0.0.1:8000/``; serve the shop with
    ``python -m bookshop --port 8000``.
    """

    name = "books"

    def __init__(self, url: str = "http://127.0.0.1:8000/", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.start_urls = [url]

    def parse(self, response: Response) -> Iterator[Any]:
        """Store the book that the page shows, if it shows one, and follow the page's links."""
        book = response.css("article.book")
        if book:
            currency, price = split_price(book.css(".price::text").get(""))
            yield Book(
                number=int(book.attrib["data-id"]),
                url=response.url,
                title=book.css("h1::text").get(""),
                author=book.css(".author span::text").get(""),
                category=book.css("td.category::text").get(""),
                currency=currency,
                price=price,
                rating=int(book.css(".rating").attrib["data-rating"]),
                stock=int(book.css(".stock::text").re_first(r"\d+") or 0),
                isbn=book.css(".isbn::text").get(""),
                description=book.css(".description::text").get(""),
            )
        # Most links lead to pages that are known: the request filter drops them. Those to the
        # baskets are dropped too, by robots.txt.
        yield from response.follow_all(css="main a", callback=self.parse)


def split_price(text: str) -> tuple[str, Decimal]:
    """Split ``£1,249.00`` into the currency and the number."""
    match = re.fullmatch(r"(\D+)([\d,]+\.\d\d)", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a price")
    return match[1], Decimal(match[2].replace(",", ""))
