"""The page in a real browser: it shows what it should, and does nothing that it should not."""

from __future__ import annotations

import re
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from netspy_scrapy.report.history import History
from netspy_scrapy.report.page import Report
from tests.report.runs import Clock, busy, empty, record, report
from tests.servers.browser import browser_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Names that a site, or an item, may bring.
HOSTILE = (
    "<script>window.hacked = 1</script>.example",
    "</script></style></title><img src=x onerror='window.hacked = 2'>",
    '"><svg onload="window.hacked = 3">',
    "'><a href=javascript:window.hacked=4>x</a>",
    "evil\u202egro.elpmaxe\u2066\x00\n\ud800",
    "]]><!--",
    "x" * 5000,
)


class Opened:
    """A page in the browser, and all that it did."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.told: list[str] = []
        """What it wrote to the console, and errors."""
        self.asked: list[str] = []
        """What it asked for, beside itself."""
        page.on("console", lambda message: self.told.append(message.text))
        page.on("pageerror", lambda error: self.told.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("dialog", lambda dialog: self.told.append(dialog.message))

    def text(self, selector: str) -> str:
        return " ".join(self.page.inner_text(selector).split())

    def count(self, selector: str) -> int:
        return int(self.page.locator(selector).count())

    def column(self, n: int) -> list[str]:
        """Return a column of the table of domains."""
        return list(
            self.page.locator(f"table >> nth=0 >> tbody tr > :nth-child({n})").all_inner_texts()
        )


@contextmanager
def opened(file: Path, width: int = 1200, *, scheme: str = "light") -> Iterator[Opened]:
    """Open a file in Chromium; it must do nothing but show itself, and fit."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**browser_settings()["PLAYWRIGHT_LAUNCH_OPTIONS"])
        try:
            size = {"width": width, "height": 900}
            one = Opened(browser.new_page(viewport=size, color_scheme=scheme))
            one.page.goto(file.as_uri())
            yield one

            assert one.told == []
            assert one.asked == [file.as_uri()]
            assert one.page.evaluate("document.documentElement.scrollWidth") <= width
        finally:
            browser.close()


def written(one: Report, name: str = "report.html") -> Path:
    file = Path(name).resolve()
    file.write_text(one.html(), encoding="utf-8")
    return file


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (390, "dark")])
def test_a_large_run(width: int, scheme: str) -> None:
    """10,000 pages of 300 domains: all parts are there, the page is small, and it fits a phone."""
    file = written(busy())
    with opened(file, width, scheme=scheme) as one:
        one.page.screenshot(path="report.png", full_page=True)

        assert file.stat().st_size < 500_000
        assert Path("report.png").stat().st_size > 50_000
        assert one.text("h1") == "books"
        assert "10,000 pages" in one.text(".tiles")
        assert one.count(".todo li") == 2
        assert one.count("rect.bar.pages") > 80
        assert one.count("rect.bar.retries") > 20
        assert one.count("rect.bar.failures") > 20
        assert one.count("svg.lane") == 12
        assert one.count(".legend li") == 3
        assert len(one.column(1)) == 100
        assert "200 more domains" in one.text("tfoot")
        assert "Half of 10,000 pages within" in one.text("main")
        assert "PostgresPipeline prices 7,990 12 12" in one.text("table >> nth=1")
        assert "404" in one.text(".causes")
        # A step tells what was in it.
        assert " pages, " in one.page.text_content("rect.hit title")


def test_a_column_sorts() -> None:
    """A click on a title sorts by it, a second click the other way round."""
    with opened(written(busy(2000, 30))) as one:
        titles = one.page.locator("table >> nth=0 >> thead button")
        titles.nth(1).click()
        pages = [int(shown.replace(",", "")) for shown in one.column(2)]

        assert pages == sorted(pages, reverse=True)
        titles.nth(1).click()
        assert [int(shown.replace(",", "")) for shown in one.column(2)] == sorted(pages)
        titles.nth(0).click()
        assert one.column(1) == sorted(one.column(1))
        assert one.count("[aria-sort]") == 1


def test_an_empty_run() -> None:
    """A run that did nothing has a page that says so."""
    with opened(written(empty())) as one:
        said = one.text("main")

        for sentence in (
            "0 pages", "No page came: see the log.", "No page.", "No retry.", "No failure.",
            "No domain had to rest.", "No domain was asked.", "No answer was measured.",
            "No sink of this package.",
        ):  # fmt: skip
            assert sentence in said


def hostile_run() -> Report:
    clock = Clock()
    history = History(clock)
    rested = {}
    for name in HOSTILE:
        history.answered(name, 0.1)
        history.retried(name)
        history.failed(name)
        history.rested(name, 0.5, name)
        rested[name] = {"rests": 1, "seconds": 0.5, "circuits": 1}
    clock.now = 1.0
    causes = dict.fromkeys(HOSTILE, 1)
    facts = record(
        spider=HOSTILE[1], reason=HOSTILE[0], pages=len(HOSTILE), request_failed=len(HOSTILE),
        failures=causes, retries=causes, drops=causes, statuses=causes,
        sinks={name: {name: {"stored": 1}} for name in HOSTILE}, domains=rested,
        next_steps=[*HOSTILE, "rows in https://user:secret@host.example/x"], exit_status=1,
    )  # fmt: skip
    return report(facts, history, 1.0)


def test_hostile_names_are_shown_and_do_nothing() -> None:
    """No name of a domain, table, cause, spider or reason becomes a part of the page."""
    file = written(hostile_run())
    with opened(file) as one:
        assert one.page.evaluate("window.hacked") is None
        assert one.count("script") == one.count("style") == 1
        assert one.count("img, a, iframe, object, form, main svg svg, [onload], [onerror]") == 0
        assert HOSTILE[0] in one.column(1)
        assert one.text("h1") == HOSTILE[1]
        assert "evil\ufffdgro.elpmaxe\ufffd\ufffd\ufffd\ufffd" in one.column(1)
        assert max(map(len, one.column(1))) == 80
    text = file.read_text(encoding="utf-8")

    assert "secret" not in text
    assert "https://host.example/x" in text


def test_even_an_unescaped_script_would_not_run() -> None:
    """The page's own policy forbids every script but the one that sorts tables."""
    html = empty().html().replace("</main>", "<script>window.hacked = 1</script></main>")
    Path("report.html").write_text(html, encoding="utf-8")
    with (
        pytest.raises(AssertionError, match="Content Security Policy"),
        opened(Path("report.html").resolve()) as one,
    ):
        assert one.page.evaluate("window.hacked") is None


@pytest.mark.parametrize("place", [0, 1], ids=["light", "dark"])
def test_colours_can_be_read(place: int) -> None:
    """Texts have a contrast of 4.5 to 1 at least with what is behind them, shapes of 3 (WCAG)."""
    sheet = (resources.files("netspy_scrapy.report") / "report.css").read_text(encoding="utf-8")
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", sheet.split("prefers-color-scheme")[place]))

    for behind in ("paper", "card"):
        for ink in ("text", "quiet", "bad", "warn"):
            assert contrast(colours[ink], colours[behind]) >= 4.5, (ink, behind)
        for shape in ("page", "rest", "bad", "warn"):
            assert contrast(colours[shape], colours[behind]) >= 3, (shape, behind)


def contrast(one: str, other: str) -> float:
    """Return the ratio of two colours' luminances, as WCAG 2 counts it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)
