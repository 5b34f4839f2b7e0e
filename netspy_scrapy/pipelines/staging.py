r"""How the SQL servers get a batch fast, and how its bad rows are found.

Rows go as one text into a temporary table (``COPY``, ``LOAD DATA``), from where one statement
writes them into the table. Both databases read the same text: a line for each row, tabs between
the values, ``\N`` for NULL, and a backslash before what would end a value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from netspy_scrapy.pipelines.sql import escape_surrogates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from netspy_scrapy.pipelines.servers import Fault
    from netspy_scrapy.pipelines.sql import Refused

_ESCAPES = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))
_NULL = "\\N"
#: With more bad rows than that, ranges are halved: to write all that follows each bad row once more
#: would take the square of the time.
_FEW_BAD = 8


def escaped(texts: Sequence[str | None]) -> list[str]:
    r"""Return the values of a column as the text has them.

    >>> escaped(["a\tb", None])
    ['a\\tb', '\\N']
    """
    if None in texts:
        found = escaped(["" if text is None else text for text in texts])
        return [_NULL if text is None else one for text, one in zip(texts, found, strict=True)]
    # All values at once: this is where the time of a batch goes.
    whole = "\0".join(texts)  # type: ignore[arg-type]
    if whole.count("\0") != len(texts) - 1:
        return [_escape(text) for text in texts]  # type: ignore[arg-type]
    return _escape(whole).split("\0")


def _escape(text: str) -> str:
    for mark, replacement in _ESCAPES:
        if mark in text:
            text = text.replace(mark, replacement)
    return text


def lines(columns: Iterable[Sequence[str]]) -> list[str]:
    """Return the rows as lines, from the escaped values of their columns."""
    return list(map("\t".join, zip(*columns, strict=True)))


def joined(rows: Sequence[str]) -> bytes:
    """Return lines as what is sent."""
    return ("\n".join(rows) + "\n").encode()


def without_surrogates(texts: Sequence[str | None]) -> Sequence[str | None]:
    r"""Return *texts* with lone surrogates, which have no UTF-8, written out (``\udc80``)."""
    try:
        "".join(filter(None, texts)).encode()
    except UnicodeEncodeError:
        return [None if text is None else escape_surrogates(text) for text in texts]
    return texts


def isolate(
    write: Callable[[int, int], Any],
    ranges: Iterable[tuple[int, int]],
    fault_of: Callable[[Exception], Fault],
) -> Refused:
    """Write *ranges* of rows with as few calls as possible, and return the rows that are bad.

    *write* gets the first row and the one after the last, and stores them all or raises. If
    *fault_of* blames a row, the range is split there, or in halves if it does not know which; a
    row that fails alone is refused. A fault that is no row's is raised on.
    """
    refused: Refused = {}
    todo = [*ranges][::-1]
    while todo:
        start, stop = todo.pop()
        try:
            write(start, stop)
        except Exception as exc:
            fault = fault_of(exc)
            if not fault.is_of_a_row:
                raise
            if stop - start == 1:
                refused[start] = fault.reason
                continue
            row = fault.row if len(refused) < _FEW_BAD else None
            todo += _split(start, stop, row)[::-1]
    return refused


def _split(start: int, stop: int, row: int | None) -> list[tuple[int, int]]:
    if row is None or not 0 <= row < stop - start:
        middle = (start + stop) // 2
        return [(start, middle), (middle, stop)]
    bad = start + row
    parts = [(start, bad), (bad, bad + 1), (bad + 1, stop)]
    return [part for part in parts if part[0] < part[1]]
