"""A small bookshop web site to crawl, served on this machine, that behaves as real sites do.

It needs nothing but the standard library. ``python -m bookshop`` serves it until it is interrupted;
`Bookshop` (or `serve`) serves it from a thread of a program that crawls it::

    from bookshop import Bookshop

    with Bookshop() as shop:
        crawl(shop.url)  # http://127.0.0.1:PORT/

What is there
-------------
``/``, ``/catalogue/page-2.html`` to ``page-12.html``
    240 books on 12 list pages of 20, each with a link to the next (``page-1.html`` redirects
    to ``/``).
``/book/<id>-<slug>.html``
    A book: title, author, price with its currency, rating of 1 to 5, number in stock, ISBN,
    category, breadcrumbs, description, cover, and related books, which a crawl has mostly seen.
``/category/<slug>.html``, ``/category/<slug>-page-2.html``
    The books of a category, 20 a page.
``/images/<id>.png``
    The cover, a valid PNG of some hundred bytes.
``/basket/<id>.html``
    What a book's "Add to basket" leads to: served, but forbidden by robots.txt.
``/robots.txt``, ``/sitemap.xml``
    The rules, and every page worth a visit.

Titles, authors and descriptions have accents, Chinese, an emoji, ampersands, quotes, commas and
line breaks, so a CSV file must quote and a database must keep Unicode.

The trouble
-----------
=============== ===== ==========================================================================
books           count what happens
=============== ===== ==========================================================================
`MISSING_IDS`   5     the link leads to a 404, always
`BUSY_IDS`      4     503 with ``Retry-After: 1`` at the first request, the page after that
`LIMITED_IDS`   3     429 with ``Retry-After: 1`` at the first request, the page after that
`BROKEN_IDS`    1     500, always
=============== ===== ==========================================================================

A crawl that tries again therefore gets 234 books (`READABLE_IDS`), one that does not gets 227. What
was the first request is remembered by each server for itself: a new one starts anew.

Every page, cover and text has an ETag and a Last-Modified date, and a request with If-None-Match or
If-Modified-Since gets a 304 when nothing has changed. What is served depends on nothing but the
edition: under ``Bookshop(edition=2)`` the books of `revised_ids` have another price and stock, and
so another ETag and date, while the list pages stay as they were.
"""

from bookshop.catalogue import (
    BOOK_COUNT,
    BROKEN_IDS,
    BUSY_IDS,
    LIMITED_IDS,
    MISSING_IDS,
    PAGE_SIZE,
    READABLE_IDS,
    Book,
    books,
    revised_ids,
)
from bookshop.site import Bookshop, serve

__all__ = [
    "BOOK_COUNT",
    "BROKEN_IDS",
    "BUSY_IDS",
    "LIMITED_IDS",
    "MISSING_IDS",
    "PAGE_SIZE",
    "READABLE_IDS",
    "Book",
    "Bookshop",
    "books",
    "revised_ids",
    "serve",
]
