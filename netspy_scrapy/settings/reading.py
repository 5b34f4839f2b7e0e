"""Reading and checking single settings, and whose value of a pair counts."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from scrapy.settings import SETTINGS_PRIORITIES
from scrapy.utils.misc import load_object

from netspy_scrapy.exceptions import ConfigError
from netspy_scrapy.settings.table import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy.settings import BaseSettings

_ADDON_PRIORITY = SETTINGS_PRIORITIES["addon"]
# A password may hold a slash or an @ that should have been escaped.
_USER_INFO = re.compile(r"(?<=://).*@")


def user_set(settings: BaseSettings, name: str) -> bool:
    """Tell whether project, spider or command line gave *name* a value."""
    return (settings.getpriority(name) or 0) > _ADDON_PRIORITY


def deciding(settings: BaseSettings, name: str) -> str:
    """Return which setting of a pair counts: *name* or its counterpart in Scrapy."""
    theirs = SETTINGS[name].scrapy
    if theirs is None or user_set(settings, name):
        return name
    if user_set(settings, theirs):
        return theirs
    return name if settings.getpriority(name) is not None else theirs


# Reading one value -----------------------------------------------------------------------------


def read(settings: BaseSettings, name: str) -> Any:
    """Return a setting as it is, the default of the table where nobody set it."""
    if settings.getpriority(name) is None and name in SETTINGS:
        return SETTINGS[name].default
    return settings.get(name)


def read_bool(settings: BaseSettings, name: str) -> bool:
    """Read *name* as a bool: True, False, 1, 0, or the same words as text."""
    value = read(settings, name)
    if isinstance(value, str):
        word = value.strip().lower()
        if word in {"true", "1", "yes", "on"}:
            return True
        if word in {"false", "0", "no", "off", ""}:
            return False
    elif value in (True, False):
        return bool(value)
    raise ConfigError(name, value, "True or False")


def read_number(settings: BaseSettings, name: str, *, unit: str, minimum: float = 0.0) -> float:
    """Read *name* as a finite number not below *minimum*."""
    value = read(settings, name)
    try:
        if isinstance(value, bool):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or number < minimum:
        raise ConfigError(name, value, f"a number of {unit}, {minimum:g} or more")
    return number


def read_int(settings: BaseSettings, name: str, *, minimum: int = 0) -> int:
    """Read *name* as a whole number not below *minimum*."""
    value = read(settings, name)
    try:
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
            raise TypeError
        number = int(value)
    except (TypeError, ValueError):
        number = minimum - 1
    if number < minimum:
        raise ConfigError(name, value, f"a whole number, {minimum} or more")
    return number


def read_text(settings: BaseSettings, name: str) -> str:
    """Read *name* as text that is not empty."""
    value = read(settings, name)
    text = str(value) if value is not None else ""
    if not text or isinstance(value, (bool, int, float, list, dict)):
        raise ConfigError(name, value, "a text that is not empty")
    return text


def read_choice(settings: BaseSettings, name: str, allowed: tuple[str, ...]) -> str:
    """Read *name* as one of a few words."""
    value = read(settings, name)
    if value not in allowed:
        raise ConfigError(name, value, " or ".join(f'"{one}"' for one in allowed))
    return str(value)


def read_names(settings: BaseSettings, name: str, *, what: str) -> list[str]:
    """Read *name* as a list of texts: a list, JSON, or text with commas; *what* says of what."""
    value = read(settings, name)
    items: Any = value
    if isinstance(value, str):
        with suppress(ValueError):
            items = json.loads(value)
        if isinstance(items, str):
            items = [part.strip() for part in items.split(",") if part.strip()]
    if value is None:
        return []
    if not isinstance(items, (list, tuple)) or not all(
        isinstance(item, str) and item for item in items
    ):
        raise ConfigError(name, without_secrets(value), f"a list of {what}, or text with commas")
    return list(items)


def read_mapping(settings: BaseSettings, name: str) -> dict[str, Any]:
    """Read *name* as a mapping of names to values: a dict, or JSON."""
    value = read(settings, name)
    if isinstance(value, str):
        with suppress(ValueError):
            value = json.loads(value)
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        # It may hold a password.
        raise ConfigError(name, f"<{type(value).__name__}>", "a dict whose keys are texts")
    return dict(value)


def without_secrets(value: Any) -> Any:
    """Return the value of a setting as an error may show it: no user and password of a URL."""
    if isinstance(value, str):
        return _USER_INFO.sub("***@", value)
    return [without_secrets(one) for one in value] if isinstance(value, (list, tuple)) else value


def read_codes(settings: BaseSettings, name: str) -> frozenset[int]:
    """Read *name* as a set of HTTP statuses: a list, or text with commas."""
    value = read(settings, name)
    allowed = "a list of HTTP statuses (100 to 999)"
    if value is None:
        return frozenset()
    items: Iterable[Any]
    if isinstance(value, str):
        items = [part for part in value.strip("[] ").split(",") if part.strip()]
    elif isinstance(value, (list, tuple, set, frozenset)):
        items = value
    else:
        raise ConfigError(name, value, allowed)
    codes = set()
    for item in items:
        try:
            code = int(item)
        except (TypeError, ValueError):
            raise ConfigError(name, value, allowed) from None
        if isinstance(item, bool) or not 100 <= code <= 999:  # noqa: PLR2004
            raise ConfigError(name, value, allowed)
        codes.add(code)
    return frozenset(codes)


def read_prefixes(name: str, value: Any) -> tuple[str, ...]:
    """Return *value* of *name* as prefixes of content types, in lower case: a list, or text."""
    allowed = 'a list of prefixes such as "text/" or "application/json"'
    if value is None:
        return ()
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple, set, frozenset)):
        raise ConfigError(name, value, allowed)
    if not all(isinstance(one, str) for one in items):
        raise ConfigError(name, value, allowed)
    prefixes = tuple(one.strip().lower() for one in items)
    if isinstance(value, str):
        return tuple(filter(None, prefixes))
    if not all(prefixes):
        raise ConfigError(name, value, f"{allowed}; an empty one would allow everything")
    return prefixes


# A dataclass per feature -----------------------------------------------------------------------


def is_kind_of(component: Any, cls: type) -> bool:
    """Tell whether a component, as settings name it, is *cls* or is derived from it.

    issubclass() would ask Scrapy's metaclass, which takes all that looks like a scheduler.
    """
    return cls in getattr(load_object(component), "__mro__", ())
