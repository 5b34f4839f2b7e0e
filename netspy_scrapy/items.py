"""netspy's items: fields are attributes, the class says where and how a row is stored."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

from itemadapter import ItemAdapter

from netspy_scrapy.exceptions import ItemError

if TYPE_CHECKING:
    from collections.abc import Callable

_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")
_SUFFIX = "_item"

#: Attributes of an item that say how it is stored, and so are no fields.
_DIRECTIONS = frozenset({"pipelines", "table_name"})


class _Default:
    """A field that the class has a value for: it is read where the item has none."""

    def __init__(self, name: str, value: Any) -> None:
        self._name = name
        self._value = value

    def __get__(self, item: dict[str, Any] | None, _: type) -> Any:
        return self._value if item is None else item.get(self._name, self._value)

    def __set__(self, item: dict[str, Any], value: Any) -> None:
        item[self._name] = value


class _Computed:
    """What is worked out when it is read, unless the item has a field of that name."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __get__(self, item: Any, _: type) -> Any:
        return self if item is None else self._function(item)


class Item(dict[str, Any]):
    """A row of one table.

    ::

        class NewsItem(Item):
            __table_name__ = "news"     # default: the class name, NewsItem -> news
            __unique_key__ = ["url"]    # fields of the fingerprint; default: all that are not empty

        item = NewsItem()
        item.url = "https://example.com/1"
        item.pipelines = ["myproject.pipelines.Special"]   # only these sinks get it

    It is a dict of its fields, so feed exports, item loaders and pipelines written for Scrapy
    take it as they are. A name that begins with an underscore is not a field.
    """

    __table_name__: ClassVar[str | None] = None
    __unique_key__: ClassVar[Any] = ()

    pipelines: list[str] | None = None
    """Paths of the sinks that get this item; None: all in ITEM_PIPELINES."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, value in list(cls.__dict__.items()):
            if name[:1] != "_" and name not in _DIRECTIONS and not hasattr(value, "__get__"):
                setattr(cls, name, _Default(name, value))

    def __init__(self, /, *args: Any, **assigned: Any) -> None:
        """Take fields from a mapping, as a dict does; keywords are assignments of attributes."""
        super().__init__()
        for name, value in dict(*args).items():
            self[name] = value
            is_field = isinstance(name, str) and name[:1] != "_" and name not in _DIRECTIONS
            if is_field and hasattr(type(self), name):
                object.__setattr__(self, name, value)
        for name, value in assigned.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or name in _DIRECTIONS:
            object.__setattr__(self, name, value)
            return
        self[name] = value
        if hasattr(type(self), name):
            # A field called "items" or "title" (with a class default) must be read back as set.
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no field {name!r}") from None

    def __delattr__(self, name: str) -> None:
        if name in self:
            del self[name]
            self.__dict__.pop(name, None)
        else:
            object.__delattr__(self, name)

    def __reduce__(self) -> tuple[Any, ...]:
        directions = {key: self.__dict__[key] for key in self.__dict__ if key not in self}
        return _rebuild, (type(self), dict(self), directions)

    def pre_to_db(self) -> None:
        """Change the item just before it is stored; called once, before the fingerprint."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, in the order in which they were first set."""
        return dict(self)

    @_Computed
    def fingerprint(self) -> str:
        """Return what tells equal items of a run, in hex digits; see ITEM_FILTER_ENABLE."""
        from netspy_scrapy.pipelines.rows import fingerprint  # noqa: PLC0415 - it imports us

        update = isinstance(self, UpdateItem)
        return fingerprint(self.table_name, dict(self), self.unique_key, update=update).hex()

    @property
    def unique_key(self) -> list[str]:
        """The fields of ``__unique_key__``; empty: none were named."""
        return _names(self.__unique_key__)

    @property
    def table_name(self) -> str:
        """The table that the item goes to; may be set on the item."""
        return self.__dict__.get("_table") or self.__table_name__ or table_name_of(type(self))

    @table_name.setter
    def table_name(self, value: str) -> None:
        object.__setattr__(self, "_table", value)


class UpdateItem(Item):
    """New values for a row that exists: the fields of ``__update_key__`` find it.

    Without ``__update_key__`` the ``__unique_key__`` is used. The fingerprint always covers all
    fields, so a row that changes twice in a run is written twice.
    """

    __update_key__: ClassVar[Any] = ()

    @property
    def update_key(self) -> list[str]:
        """The fields that find the row; empty: neither key was named."""
        return _names(self.__update_key__) or self.unique_key


def table_name_of(item_class: type) -> str:
    """Derive a table's name from a class name.

    >>> [table_name_of(type(name, (), {})) for name in ("NewsItem", "HTMLPageItem", "Book")]
    ['news', 'h_t_m_l_page', 'book']
    """
    name = _CAPITAL.sub("_", item_class.__name__).lower()
    return name[: -len(_SUFFIX)] if name.endswith(_SUFFIX) and name != _SUFFIX else name


def fields_of(item: Any) -> dict[str, Any]:
    """Return the fields of any item that Scrapy knows, as a new dict.

    Raises :exc:`TypeError` if *item* is not an item.
    """
    if isinstance(item, dict):
        return dict(item)
    return dict(ItemAdapter(item))


def _names(key: Any) -> list[str]:
    if isinstance(key, str):
        return [key]
    if key is not None and not hasattr(key, "__iter__"):
        raise ItemError(f"a key is the name of a field or a list of them, not {key!r}")
    return list(key or ())


def _rebuild(cls: type[Item], fields: dict[str, Any], directions: dict[str, Any]) -> Item:
    item = cls.__new__(cls)
    Item.__init__(item, fields)
    item.__dict__.update(directions)
    return item
