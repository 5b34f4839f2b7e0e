"""What ``netspy-create`` writes: the text of projects, spiders and items."""

from __future__ import annotations

import keyword
import re
import textwrap
import unicodedata
from typing import TYPE_CHECKING, Final

from netspy_scrapy.items import Item

if TYPE_CHECKING:
    from collections.abc import Sequence

    from netspy_scrapy.commands.tables import Column, Table

#: The width of a line, as ruff and black have it.
_WIDTH: Final = 88
_INDENT: Final = "    "

#: Python's types of what databases call theirs; the first that matches counts.
_TYPES: Final = (
    (r"\[\]$|array", "list"),
    (r"json", "dict | list"),
    (r"bool", "bool"),
    (r"interval", "timedelta"),
    (r"timestamp|datetime", "datetime"),
    (r"date", "date"),
    (r"time", "time"),
    (r"numeric|decimal|number|money", "Decimal"),
    (r"^bit|blob|binary|bytea", "bytes"),
    (r"real|float|double", "float"),
    (r"int|serial|^year", "int"),
)
_IMPORTS: Final = {
    "date": "datetime", "datetime": "datetime", "time": "datetime", "timedelta": "datetime",
    "Decimal": "decimal",
}  # fmt: skip


def words_of(name: str, suffix: str) -> list[str]:
    """Split a name that a user gave into words, without *suffix* at its end.

    Raises ValueError if no class and no file can be called so.

    >>> words_of("HotNewsItem", "item"), words_of("hot-news", "item")
    (['hot', 'news'], ['hot', 'news'])
    """
    text = unicodedata.normalize("NFKC", name).strip()
    joined = re.sub(r"[\s-]+", "_", text)
    if not joined.isidentifier() or joined.startswith("_"):
        raise ValueError(
            f"{name!r} cannot be a name: expected letters, digits and _, beginning with a letter"
        )
    spaced = re.sub(r"(?<=[^\W_A-Z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", joined)
    words = [word.lower() for word in spaced.split("_") if word]
    return words[:-1] if len(words) > 1 and words[-1] == suffix else words


def class_name(words: Sequence[str], suffix: str) -> str:
    """Return the name of the class: HotNewsItem."""
    return "".join(word[:1].upper() + word[1:] for word in [*words, suffix])


# Spiders and projects --------------------------------------------------------------------------
def spider_text(words: Sequence[str]) -> str:
    """Return the module of a netspy spider."""
    name, cls = "_".join(words), class_name(words, "spider")
    return f"""import netspy_scrapy as mw


class {cls}(mw.AirSpider):
    name = "{name}"

    def start_requests(self):
        yield mw.Request("https://example.com", callback=self.parse)

    def parse(self, request, response):
        item = mw.Item()
        item.table_name = "{name}"
        item.url = request.url
        item.title = response.xpath("//title/text()").get()
        yield item


if __name__ == "__main__":
    {cls}().start()
"""


def project_files(name: str) -> dict[str, str]:
    """Return the files of a project, by their paths."""
    words = words_of(name, "")
    return {
        f"{name}/scrapy.cfg": f"[settings]\ndefault = {name}.settings\n",
        f"{name}/README.md": _README.format(name=name),
        f"{name}/{name}/__init__.py": "",
        f"{name}/{name}/settings.py": _SETTINGS.format(name=name),
        f"{name}/{name}/items/__init__.py": "",
        f"{name}/{name}/spiders/__init__.py": "",
        f"{name}/{name}/spiders/{name}_spider.py": spider_text(words),
    }


_SETTINGS: Final = """BOT_NAME = "{name}"

SPIDER_MODULES = ["{name}.spiders"]
NEWSPIDER_MODULE = "{name}.spiders"

# netspy's rules: status policy, polite retries, batched sinks, dumps, run summary.
ADDONS = {{"netspy_scrapy.Addon": 500}}

# Politeness: robots.txt is obeyed, its Crawl-delay included.
ROBOTS_OBEY = True
CONCURRENT_REQUESTS_PER_DOMAIN = 8
DOWNLOAD_DELAY = 0

# Where items go. More sinks: netspy_scrapy.pipelines.csv.CsvPipeline,
# netspy_scrapy.pipelines.sqlite.SqlitePipeline and others, each with a number of its own.
ITEM_PIPELINES = {{
    "netspy_scrapy.pipelines.console.ConsolePipeline": 300,
}}

# What was seen: "memory" (bloom filter) or "lite" (exact).
DEDUP_FILTER = "memory"

# The database that "netspy-create -i NAME --table TABLE" reads, without a URL.
# MYSQL_HOST = "localhost"
# MYSQL_PORT = 3306
# MYSQL_USER = "root"
# MYSQL_PASSWORD = ""
# MYSQL_DB = "{name}"

LOG_LEVEL = "INFO"
FEED_EXPORT_ENCODING = "utf-8"
"""

_README: Final = """# {name}

A Scrapy project with [netspy_scrapy](https://github.com/netspy-scrapy/netspy-scrapy).

```bash
scrapy crawl {name}  # run a spider
scrapy netspy-doctor  # what the add-on does here
netspy-create -s news  # a new spider, in {name}/spiders
netspy-create -i news  # a new item, in {name}/items
netspy-retry --requests  # fetch what failed
netspy-retry --items  # store what could not be stored
```
"""


# Items -----------------------------------------------------------------------------------------
def item_text(words: Sequence[str], table: Table | None = None) -> str:
    """Return the module of an item: of *table*, or an empty one."""
    cls = class_name(words, "item")
    if table is None:
        name = "_".join(words)
        return f'''import netspy_scrapy as mw


class {cls}(mw.Item):
    """One row: item = {cls}(); item.url = ...; yield item."""

    __table_name__ = "{name}"
    # The fields by which two items are equal; none: all that are not empty.
    __unique_key__ = ()
'''
    used = {name for column in table.columns for name in re.findall(r"\w+", _type(column))}
    modules: dict[str, list[str]] = {}
    for name in sorted(used & _IMPORTS.keys()):
        modules.setdefault(_IMPORTS[name], []).append(name)
    lines = [f"from {module} import {', '.join(modules[module])}" for module in sorted(modules)]
    lines += [*([""] if lines else []), "import netspy_scrapy as mw", "", ""]
    lines += [f"class {cls}(mw.Item):", f'{_INDENT}"""One row of the table."""', ""]
    lines += _comment(table.comment)
    lines += [f"{_INDENT}__table_name__ = {_literal(table.name)}", *_key_lines(table), ""]
    for column in table.columns:
        lines += _field(column)
    return "\n".join(lines) + "\n"


def _key_lines(table: Table) -> list[str]:
    key = list(table.key)
    if not key:
        return _comment("The table has no key: two items are equal if all fields are.")
    said = []
    if key != list(table.primary) and table.primary:
        numbered = ", ".join(_literal(name) for name in table.primary)
        said = _comment(f"Not {numbered}: the database numbers the rows.")
    inside = ", ".join(map(_literal, key)) + ("," if len(key) == 1 else "")
    line = f"{_INDENT}__unique_key__ = ({inside})"
    if _width(line) > _WIDTH:
        inner = [f"{2 * _INDENT}{_literal(name)}," for name in key]
        return [*said, f"{_INDENT}__unique_key__ = (", *inner, f"{_INDENT})"]
    return [*said, line]


def _field(column: Column) -> list[str]:
    kind = _type(column)
    said = _plain(column.comment) or ("the database numbers it" if column.numbered else "")
    if column.generated:
        text = f"{_literal(column.name)} is computed by the database"
        return _comment(f"{text}: {said}" if said else text)
    if not _is_attribute(column.name):
        quoted = _literal(column.name)
        text = f"item[{quoted}] = ...: {kind}"
        return _comment(f"{text}, {said}" if said else text)
    line = f"{_INDENT}{column.name}: {kind}"
    if not said:
        return [line]
    beside = f"{line}  # {said}"
    return [beside] if _width(beside) <= _WIDTH else [*_comment(said), line]


def _is_attribute(name: str) -> bool:
    """Tell whether ``item.name = ...`` sets the field *name*, and nothing else."""
    return (
        name.isidentifier()
        and not keyword.iskeyword(name)
        and not name.startswith("_")
        and not hasattr(Item, name)
        # Python normalises identifiers: another spelling would be another column.
        and unicodedata.normalize("NFKC", name) == name
    )


def _type(column: Column) -> str:
    found = next((kind for pattern, kind in _TYPES if re.search(pattern, column.type)), "str")
    return f"{found} | None" if column.nullable else found


def _comment(text: str) -> list[str]:
    width = _WIDTH - len(_INDENT) - 2
    lines = textwrap.wrap(_plain(text), width, break_on_hyphens=False)
    return [f"{_INDENT}# {line}" for line in lines]


def _plain(text: str) -> str:
    """Return *text* as one line that can only be a comment: nothing in it ends a line or hides."""
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())


def _literal(text: str) -> str:
    """Return *text* as a Python literal, in double quotes where that costs no escapes."""
    quoted = repr(text)
    if quoted[0] == "'" and '"' not in text:
        return f'"{quoted[1:-1]}"'
    return quoted


def _width(line: str) -> int:
    """Return the width of a line as ruff counts it: wide characters are two."""
    return sum(2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in line)
