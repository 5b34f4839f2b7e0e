"""The books, made from their numbers alone: the same on every machine and at every start."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from urllib.parse import quote

BOOK_COUNT = 240
PAGE_SIZE = 20

MISSING_IDS = frozenset({17, 58, 103, 166, 221})
"""Books that are listed and linked, but whose page is a 404."""
BUSY_IDS = frozenset({9, 74, 131, 200})
"""Books whose page is a 503 with Retry-After at the first request."""
LIMITED_IDS = frozenset({33, 120, 187})
"""Books whose page is a 429 with Retry-After at the first request."""
BROKEN_IDS = frozenset({88})
"""Books whose page is a 500 at every request."""
READABLE_IDS = frozenset(range(1, BOOK_COUNT + 1)) - MISSING_IDS - BROKEN_IDS
"""Books whose page can be had, if need be at the second try."""

FIRST_EDITION = datetime(2024, 3, 1, 6, 0, tzinfo=timezone.utc)

_FIRST = (
    "Salt",
    "Winter",
    "Paper",
    "Silent",
    "Amber",
    "Hollow",
    "Seventh",
    "Northern",
    "Glass",
    "Borrowed",
    "Crimson",
    "Wandering",
    "Last",
    "Invisible",
    "Copper",
    "Forgotten",
)
_SECOND = (
    "Road",
    "Orchard",
    "Lighthouse",
    "Archive",
    "Tide",
    "Cartographer",
    "Window",
    "Engine",
    "Garden",
    "Harbour",
    "Letter",
    "Mountain",
    "Clock",
    "Kitchen",
    "Parliament",
)
_TITLES = {
    3: "红楼梦 (Dream of the Red Chamber)",
    12: "Bread & Roses, and Other Essays",
    17: "The Map That Was Lost",
    26: "L'Été à Nîmes: «Souvenirs»",
    33: "The “Quiet” Hour",
    41: '"Yes," She Said',
    47: "Ångström & Søn",
    55: "三体",
    64: "Salt, Fat; Acid, Heat",
    70: "<b>Bold</b> Moves in HTML",
    79: "Über die Brücke",
    92: 'Don\'t Panic, "Arthur"',
    101: "=SUM(Stories)",
    110: "Cien años de soledad",
    118: "The Owl 🦉 and the Pussy-Cat",
    127: "中国古代科学史, 第一卷",
    139: "50% Off: A Love Story",
    148: "C++ / C# / C: Notes",
    159: "Война и мир",
    172: "Naïve Café",
    183: "A Very Long Title, in Which the Author Explains What the Reader Will Find, and Why",
    194: "Tab\u00a0& Space",
    205: "Ελληνικά",
    218: "O'Brien's Table",
    233: "活着",
}
_AUTHORS = (
    "Ada Byrne",
    "Björn Sjöberg",
    "曹雪芹",
    "Chiara D'Angelo",
    "Desmond O'Neill",
    "Élodie Garçon",
    "Farah Nasser",
    "García, Inés",
    "Hana Dvořáková",
    "Ivan Petrov",
    "John Smith & Sons",
    "Kwame Mensah",
    '"Lux" Moreau',
    "刘慈欣",
    "Maud van der Berg",
    "Nguyễn Thị Lan",
    "Oğuz Kaya",
)
_CATEGORIES = (
    # Name, and how many of every 40 books it has: the first three fill more than a page.
    ("Fiction", 9),
    ("Travel", 6),
    ("History", 5),
    ("Poetry", 3),
    ("Science", 3),
    ("Food & Drink", 3),
    ("Children's", 3),
    ("Art", 2),
    ("Music", 2),
    ("Business", 2),
    ("Comédie", 1),
    ("中文书", 1),
)
_CURRENCIES = ("£", "£", "£", "€", "$", "¥")
_SENTENCES = (
    "A book about setting out, and about what is left at home.",
    "“It was the rain,” she said, “and nothing else.”",
    "First published in a small edition; now with notes, maps & an index.",
    "Prices, dates and names are invented, the weather is not.",
    "Le récit d'un été qui ne finit pas.",
    "这本书讲述了一个家族的兴衰。",
    'Reviewers called it "quiet, exact, and funny".',
    "Contains 1,024 footnotes; half of them are true.",
    "For readers who liked <The Salt Road> and its sequels.",
    "Three sisters, two houses, one key.",
    "It can be read from either end.",
)


@dataclass(frozen=True)
class Book:
    """One book, as its page shows it."""

    id: int
    title: str
    author: str
    category: str
    currency: str
    price: Decimal
    rating: int
    """1 to 5."""
    stock: int
    """0: out of stock."""
    isbn: str
    """13 digits in the form of an ISBN, with a right check digit."""
    description: str
    """Two or three lines, parted by line feeds."""
    modified: datetime
    """In UTC."""

    @property
    def slug(self) -> str:
        """The title as it stands in the URL, not percent-encoded."""
        return slug(self.title)

    @property
    def path(self) -> str:
        """The path of the page, percent-encoded."""
        return f"/book/{self.id}-{quote(self.slug)}.html"

    @property
    def image_path(self) -> str:
        """The path of the cover."""
        return f"/images/{self.id}.png"

    @property
    def price_text(self) -> str:
        """The price as the page shows it: ``£1,249.00``."""
        return f"{self.currency}{self.price:,.2f}"


def books(edition: int = 1) -> tuple[Book, ...]:
    """Return all books of an edition of the site, by id from 1."""
    if edition < 1:
        raise ValueError(f"an edition is 1 or more, not {edition}")
    revised = revised_ids(edition)
    return tuple(_book(n, edition if n in revised else 1) for n in range(1, BOOK_COUNT + 1))


def revised_ids(edition: int) -> frozenset[int]:
    """Return the books whose page differs from the first edition's: one in ten."""
    if edition == 1:
        return frozenset()
    return frozenset(n for n in range(1, BOOK_COUNT + 1) if n % 10 == edition % 10)


def categories() -> tuple[str, ...]:
    """Return the names of all categories."""
    return tuple(name for name, _ in _CATEGORIES)


def slug(title: str) -> str:
    """Return a title in the form that URLs have: lower case, words joined by hyphens."""
    plain = unicodedata.normalize("NFKD", title.lower())
    plain = "".join(c for c in plain if not unicodedata.combining(c))
    return re.sub(r"[\W_]+", "-", plain).strip("-")[:60].rstrip("-")


def _book(n: int, edition: int) -> Book:
    # Steps that share no factor with what they wrap round at: neighbours differ, nothing repeats.
    title = n * 97 % BOOK_COUNT
    price = Decimal(n * 7919 % 9000 + 599) / 100
    if n % 60 == 19:
        price += 1200
    stock = n * 13 % 23
    if edition > 1:
        price += edition
        stock += edition
    return Book(
        id=n,
        title=_TITLES.get(n, f"The {_FIRST[title % 16]} {_SECOND[title // 16]}"),
        author=_AUTHORS[n * 5 % len(_AUTHORS)],
        category=_category(n * 23 % 40),
        currency=_CURRENCIES[n * 5 % 6 if n % 4 else 0],
        price=price,
        rating=n * 3 % 5 + 1,
        stock=stock,
        isbn=_isbn(n),
        description="\n".join(_SENTENCES[(n + 4 * i) % len(_SENTENCES)] for i in range(2 + n % 2)),
        modified=FIRST_EDITION + timedelta(hours=n, days=30 * (edition - 1)),
    )


def _category(place: int) -> str:
    for name, share in _CATEGORIES:
        place -= share
        if place < 0:
            return name
    raise AssertionError


def _isbn(n: int) -> str:
    digits = f"978{n * 104_729 % 10**9:09d}"
    total = sum(int(digit) * (3 if i % 2 else 1) for i, digit in enumerate(digits))
    return f"{digits}{-total % 10}"
