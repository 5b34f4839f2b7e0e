"""A directive that makes the table of all settings of the code, when the site is built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from docutils import nodes
from docutils.parsers.rst import Directive

from netspy_scrapy.settings import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sphinx.application import Sphinx

_HEAD = ("Setting", "Default", "Scrapy's", "In short")
_WIDTHS = (30, 20, 20, 50)


class AllSettings(Directive):
    """``{all-settings}``: each setting of the package, by name."""

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        group = nodes.tgroup(cols=len(_HEAD))
        group += [nodes.colspec(colwidth=width) for width in _WIDTHS]
        group += nodes.thead("", _row([nodes.Text(text) for text in _HEAD]))
        group += nodes.tbody(
            "",
            *(
                _row(
                    [
                        _code(name),
                        _code(repr(setting.default)),
                        _code(setting.scrapy) if setting.scrapy else nodes.Text(""),
                        nodes.Text(setting.meaning),
                    ]
                )
                for name, setting in sorted(SETTINGS.items())
            ),
        )
        return [nodes.table("", group, classes=["docutils"])]


def _row(cells: Iterable[nodes.Node]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", cell)) for cell in cells))


def _code(text: str) -> nodes.literal:
    return nodes.literal(text, text)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("all-settings", AllSettings)
    return {"parallel_read_safe": True}
