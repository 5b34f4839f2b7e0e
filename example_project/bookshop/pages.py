"""How the bookshop looks: HTML, covers, robots.txt and the sitemap, from the books."""

from __future__ import annotations

import struct
import zlib
from html import escape
from typing import TYPE_CHECKING
from urllib.parse import quote

from bookshop.catalogue import PAGE_SIZE, Book, categories, slug

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

_STYLE = """
:root { color-scheme: light; --ink: #26221d; --soft: #7b7268; --line: #e6dfd5; --accent: #9c3d22; }
* { box-sizing: border-box; }
body { margin: 0; background: #faf7f2; color: var(--ink); font: 16px/1.55 Georgia, serif; }
header, main, footer { max-width: 60rem; margin: 0 auto; padding: 1.25rem 1.5rem; }
header { display: flex; flex-wrap: wrap; gap: .25rem 1rem; align-items: baseline; }
header .name { font-size: 1.5rem; font-weight: bold; color: var(--ink); margin-right: auto; }
header nav { font-size: .85rem; }
a { color: var(--accent); text-decoration: none; }
a:hover { text-decoration: underline; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: .25rem 0 .5rem; }
.books { list-style: none; margin: 0; padding: 0; display: grid; gap: 1.25rem;
  grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); }
.books li { background: #fff; border: 1px solid var(--line); border-radius: 6px; padding: .9rem; }
.books img { width: 100%; height: 9rem; border-radius: 3px; image-rendering: pixelated; }
.books h3 { font-size: .95rem; line-height: 1.3; margin: .6rem 0 .2rem; }
.rating { color: #c58a1b; letter-spacing: .1em; margin: .2rem 0; }
.pager { display: flex; justify-content: space-between; margin: 1.5rem 0; color: var(--soft); }
.breadcrumbs, .author, footer { color: var(--soft); font-size: .9rem; }
.book { display: grid; grid-template-columns: 12rem 1fr; gap: 2rem; }
.book .cover { width: 12rem; height: 16rem; border-radius: 4px; image-rendering: pixelated; }
.price { font-size: 1.4rem; margin: .3rem 0; }
.description { white-space: pre-line; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { text-align: left; padding: .25rem 1.5rem .25rem 0; border-bottom: 1px solid var(--line); }
.basket { display: inline-block; margin: 1rem 0; padding: .45rem 1rem; border-radius: 4px;
  background: var(--accent); color: #fff; }
@media (max-width: 40rem) { .book { grid-template-columns: 1fr; } }
"""
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} | The Bookshop</title>
<style>{style}</style>
</head>
<body>
<header>
<a class="name" href="/">The Bookshop</a>
<nav class="categories">{navigation}</nav>
</header>
<main>
{content}
</main>
<footer>A made-up shop: nothing here is for sale.</footer>
</body>
</html>
"""
_PALETTE = (
    (0x9C, 0x3D, 0x22),
    (0x2F, 0x5D, 0x62),
    (0xC5, 0x8A, 0x1B),
    (0x4B, 0x3F, 0x72),
    (0x5E, 0x7D, 0x3A),
    (0x7A, 0x28, 0x48),
    (0x2B, 0x4C, 0x7E),
)


def catalogue_path(page: int) -> str:
    """Return the path of a list page, from 1."""
    return "/" if page == 1 else f"/catalogue/page-{page}.html"


def category_path(name: str, page: int = 1) -> str:
    """Return the path of a page of a category, from 1."""
    suffix = "" if page == 1 else f"-page-{page}"
    return f"/category/{quote(slug(name))}{suffix}.html"


def page_count(books: Sequence[Book]) -> int:
    """Return how many list pages some books fill."""
    return -(-len(books) // PAGE_SIZE)


def catalogue_page(books: Sequence[Book], page: int) -> str:
    """Return a page of the list of all books."""
    # Relative links, as many shops have them: page 1 stands in another folder than the rest.
    before = "../" if page == 2 else f"page-{page - 1}.html"
    after = f"catalogue/page-{page + 1}.html" if page == 1 else f"page-{page + 1}.html"
    return _list_page("All books", books, page, before, after)


def category_page(name: str, books: Sequence[Book], page: int) -> str:
    """Return a page of the list of a category's books."""
    return _list_page(
        name, books, page, category_path(name, page - 1), category_path(name, page + 1)
    )


def book_page(book: Book, related: Sequence[Book]) -> str:
    """Return the page of one book."""
    stock = f"In stock ({book.stock} available)" if book.stock else "Out of stock"
    category = f'<a href="{category_path(book.category)}">{escape(book.category)}</a>'
    # The description's line feeds stay as they are: what is scraped has them too.
    return _page(
        book.title,
        f"""<p class="breadcrumbs"><a href="/">Home</a> &rsaquo; {category} &rsaquo;
<span>{escape(book.title)}</span></p>
<article class="book" data-id="{book.id}">
<img class="cover" src="{book.image_path}" alt="" width="192" height="256">
<div>
<h1>{escape(book.title)}</h1>
<p class="author">by <span>{escape(book.author)}</span></p>
<p class="price">{book.price_text}</p>
{_rating(book)}
<p class="stock">{stock}</p>
<a class="basket" href="/basket/{book.id}.html">Add to basket</a>
<div class="description">{escape(book.description)}</div>
<table class="facts">
<tr><th>ISBN</th><td class="isbn">{book.isbn}</td></tr>
<tr><th>Category</th><td class="category">{escape(book.category)}</td></tr>
<tr><th>Number</th><td class="number">{book.id}</td></tr>
</table>
</div>
</article>
<section class="related">
<h2>Related books</h2>
{_books(related)}
</section>""",
    )


def message_page(title: str, text: str) -> str:
    """Return a page that has but a sentence: an error, or the basket."""
    return _page(title, f"<h1>{escape(title)}</h1>\n<p>{escape(text)}</p>")


def cover(book: Book) -> bytes:
    """Return a cover as a PNG of 48 by 64 pixels: a coloured ground with two bands."""
    ground = _PALETTE[book.id % len(_PALETTE)]
    band = _PALETTE[(book.id // len(_PALETTE) + 1 + book.id) % len(_PALETTE)]
    top = 8 + book.id % 24
    rows = []
    for y in range(64):
        colour = band if top <= y < top + 6 or y >= 58 else ground
        # Each row starts with the number of its filter: 0, none.
        rows.append(b"\0" + bytes(colour) * 48)
    header = struct.pack(">IIBBBBB", 48, 64, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(b"".join(rows), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def robots_txt(url: str) -> str:
    """Return the robots.txt of the site at a URL."""
    return f"User-agent: *\nDisallow: /basket/\n\nSitemap: {url}sitemap.xml\n"


def sitemap(url: str, pages: Sequence[tuple[str, datetime]]) -> str:
    """Return the sitemap of the site at a URL, from paths and their dates."""
    entries = "".join(
        f"<url><loc>{url.rstrip('/')}{path}</loc><lastmod>{date:%Y-%m-%dT%H:%M:%SZ}</lastmod></url>\n"
        for path, date in pages
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{entries}</urlset>\n'
    )


def _list_page(title: str, books: Sequence[Book], page: int, before: str, after: str) -> str:
    last = page_count(books)
    shown = books[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]
    previous = (
        f'<a class="previous" rel="prev" href="{before}">&lsaquo; Previous</a>' if page > 1 else ""
    )
    following = (
        f'<a class="next" rel="next" href="{after}">Next &rsaquo;</a>' if page < last else ""
    )
    return _page(
        title if page == 1 else f"{title}, page {page}",
        f"""<h1>{escape(title)}</h1>
{_books(shown)}
<nav class="pager">
<span>{previous}</span>
<span>Page {page} of {last}</span>
<span>{following}</span>
</nav>""",
    )


def _books(books: Sequence[Book]) -> str:
    # No price here: a list page stays as it is while the pages that it links to change.
    entries = "\n".join(
        f'<li><a href="{book.path}"><img src="{book.image_path}" alt="" loading="lazy"></a>\n'
        f'<h3><a href="{book.path}" title="{escape(book.title)}">{escape(book.title)}</a></h3>\n'
        f"{_rating(book)}</li>"
        for book in books
    )
    return f'<ol class="books">\n{entries}\n</ol>'


def _rating(book: Book) -> str:
    stars = "★" * book.rating + "☆" * (5 - book.rating)
    return f'<p class="rating" data-rating="{book.rating}" title="{book.rating} of 5">{stars}</p>'


def _page(title: str, content: str) -> str:
    navigation = "\n".join(
        f'<a href="{category_path(name)}">{escape(name)}</a>' for name in categories()
    )
    return _PAGE.format(title=escape(title), style=_STYLE, navigation=navigation, content=content)
