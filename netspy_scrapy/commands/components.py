"""Components as settings name them, and what the doctor says of them."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from scrapy.utils.misc import load_object
from scrapy.utils.python import global_object_name

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

_LONGEST_VALUE = 60


def path_of(one: Any) -> str:
    """Return the import path of a component, however it is given."""
    try:
        return global_object_name(load_object(one))
    except (AttributeError, ImportError, NameError, TypeError, ValueError):
        return str(one)


def short_name(path: str) -> str:
    """Return the name of a class without its module."""
    return path.rpartition(".")[2]


def chain_of(settings: BaseSettings, name: str) -> dict[str, float]:
    """Return the components that are on, with their order."""
    chain: dict[str, Any] = {}
    for source in (f"{name}_BASE", name):
        for one, order in settings.getdict(source).items():
            chain[path_of(one)] = order
    return {path: order for path, order in chain.items() if order is not None}


def first_sentence(cls: Any) -> str:
    """Return the first sentence of a class's own docstring."""
    doc = inspect.cleandoc(vars(cls).get("__doc__") or "") if isinstance(cls, type) else ""
    return doc.partition("\n")[0].replace("`", "")


def brief(value: Any) -> str:
    """Return the value of a setting, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."
