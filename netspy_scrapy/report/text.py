"""Names and numbers as the report shows them."""

from __future__ import annotations

import html

from netspy_scrapy.logs import shown_url

#: Stands where there is nothing.
NONE = "\u2013"

#: Characters of the longest name; of one that is longer the beginning and the end are shown.
_LONGEST = 80
_END = 20

#: Seconds that are told in minutes, and hours that are told in days.
_MINUTES, _HOURS = 120, 48


def name(value: object) -> str:
    """Return a text that anybody may have written as HTML that shows it, and does nothing else.

    Without user and password of URLs. What has no picture of its own (control characters, marks
    that turn the direction of writing, halves of pairs) is shown as U+FFFD.
    """
    text = shown_url(str(value)) or NONE
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST - _END - 1]}…{text[-_END:]}"
    return html.escape("".join(one if one.isprintable() else "\ufffd" for one in text))


def sentence(value: object) -> str:
    """Return a text of ours, with names in it that may be anybody's, as HTML."""
    text = shown_url(str(value))
    return html.escape("".join(one if one.isprintable() else "\ufffd" for one in text))


def count(number: int) -> str:
    """Return a number with its thousands parted."""
    return f"{number:,}"


def counted(number: int, what: str) -> str:
    """Return a number of things: ``1 page``, ``2 pages``.

    >>> counted(1, "retry"), counted(1200, "retry")
    ('1 retry', '1,200 retries')
    """
    if number == 1:
        return f"1 {what}"
    return f"{number:,} {what[:-1] + 'ies' if what.endswith('y') else what + 's'}"


def duration(seconds: float) -> str:
    """Return a time as a person says it.

    >>> [duration(one) for one in (0.0123, 1.25, 59.6, 200, 7500, 200_000)]
    ['12 ms', '1.2 s', '60 s', '3 min 20 s', '2 h 05 min', '2 d 07 h']
    """
    if seconds < 1:
        return f"{1000 * seconds:.2g} ms" if seconds < 0.0995 else f"{1000 * seconds:.0f} ms"  # noqa: PLR2004
    if seconds < 9.95:  # noqa: PLR2004
        return f"{seconds:.2g} s"
    whole = round(seconds)
    if whole < _MINUTES:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:  # noqa: PLR2004
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    if hours < _HOURS:
        return f"{hours} h {rest:02} min"
    return f"{hours // 24} d {hours % 24:02} h"
