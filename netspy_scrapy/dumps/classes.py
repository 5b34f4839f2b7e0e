"""Which classes a dump line may name, and how their objects are built again.

A line is data: it names classes, but never gets one imported, and only Enums and items are built.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from enum import Enum
from typing import TYPE_CHECKING, Any

from itemadapter import ItemAdapter

from netspy_scrapy.exceptions import DumpError
from netspy_scrapy.items import Item

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

# The second is what multiprocessing calls the script in its child processes.
_SCRIPTS = ("__main__", "__mp_main__")


def class_name(cls: type) -> str:
    """Return the name under which a line keeps *cls*: ``module:Class``.

    A script is ``__main__`` only while it runs, so its classes are called
    ``/path/to/spider.py:Class``; under ``python -m package.spider`` the module's real name is used.
    """
    module = cls.__module__
    if module in _SCRIPTS:
        module = _script_name(sys.modules.get(module)) or module
    return f"{module}:{cls.__qualname__}"


class ClassResolver:
    """Finds the classes that dump lines name, without importing anything.

    A class is found if it was registered, or if its module is imported already (the spider's own
    modules are). It must be an Enum or an item: nothing else can be built from a line.
    """

    def __init__(self, classes: Iterable[type] = ()) -> None:
        self._known: dict[str, type] = {}
        for cls in classes:
            self.register(cls)

    def register(self, cls: type, name: str | None = None) -> type:
        """Let lines name *cls*; *name* is the name in the lines, if that is not its own.

        Raises :exc:`~netspy_scrapy.exceptions.DumpError` if it is neither an Enum nor an item.
        """
        name = name or class_name(cls)
        self._known[name] = _checked(cls, name)
        return cls

    def resolve(self, name: str) -> type:
        """Return the class called *name* (``module:Class`` or ``path/to/file.py:Class``).

        Raises :exc:`~netspy_scrapy.exceptions.DumpError` if it is not known here, or may not be
        built from a line.
        """
        cls = self._known.get(name)
        if cls is None:
            cls = self._known[name] = _checked(_find(name), name)
        return cls


def build_item(cls: type, fields: dict[str, Any]) -> Any:
    """Return an object of the item class *cls* with *fields*.

    Nothing of the class runs if all its fields are there: neither ``__init__`` nor a validator or
    converter, which would see values that it has changed before. A field that the class has got
    since makes it be called as usual, with keywords.
    """
    if issubclass(cls, Item):
        row = cls.__new__(cls)
        Item.__init__(row, fields)
        return row
    declared = ItemAdapter.get_field_names_from_class(cls)
    names = set(fields if declared is None else declared)
    unknown = sorted(fields.keys() - names)
    if unknown:
        raise DumpError(f"{class_name(cls)} has no field {unknown[0]!r} any more")
    try:
        return _build(cls, fields, complete=fields.keys() == names)
    except Exception as exc:
        raise DumpError(f"{class_name(cls)} cannot be built: {exc!r}") from exc


def _build(cls: Any, fields: dict[str, Any], *, complete: bool) -> Any:
    item: Any
    plain = dataclasses.is_dataclass(cls) or hasattr(cls, "__attrs_attrs__")
    model = hasattr(cls, "model_fields") or hasattr(cls, "__fields__")  # pydantic 2, pydantic 1
    if not (plain or model):  # scrapy.Item, whose fields need not be set
        item = cls()
        ItemAdapter(item).update(fields)
    elif not complete:
        item = cls(**fields)
    else:
        item = cls.__new__(cls)
        if plain:
            for name, value in fields.items():
                object.__setattr__(item, name, value)  # also where the class is frozen
        else:
            item.__setstate__(_pydantic_state(cls, fields))
    return item


def _pydantic_state(cls: Any, fields: dict[str, Any]) -> dict[str, Any]:
    # What pickle would restore, in the words of pydantic 2 and of pydantic 1.
    private = {}
    for name, attribute in (getattr(cls, "__private_attributes__", None) or {}).items():
        default = attribute.get_default()
        if "Undefined" not in type(default).__name__:
            private[name] = default
    extra = getattr(cls, "model_config", {}).get("extra") == "allow"
    return {
        "__dict__": fields,
        "__pydantic_fields_set__": set(fields),
        "__pydantic_extra__": {} if extra else None,
        "__pydantic_private__": private or None,
        "__fields_set__": set(fields),
        "__private_attribute_values__": private,
    }


def _checked(cls: Any, name: str) -> type:
    # To ItemAdapter every dict is an item class, and defaultdict takes a callable.
    if isinstance(cls, type) and (
        issubclass(cls, (Enum, Item))
        or (not issubclass(cls, dict) and ItemAdapter.is_item_class(cls))
    ):
        return cls
    raise DumpError(f"{name} is neither an Enum nor an item class, so no line may name it")


def _find(name: str) -> Any:
    place, _, qualname = name.rpartition(":")
    for module in _modules(place):
        # vars(), because getattr() may run a module's __getattr__, which may import.
        found: Any = module
        for part in qualname.split("."):
            found = vars(found).get(part) if isinstance(found, (type, type(module))) else None
        if found is not None:
            return found
    raise DumpError(
        f"{name} is not known here: import its module before the replay, "
        "or register the class with ClassResolver.register"
    )


def _modules(place: str) -> Iterator[ModuleType]:
    """Yield the imported modules that *place*, a module's name or a file, may mean."""
    if place in sys.modules:
        yield sys.modules[place]
    base = os.path.basename(place)  # noqa: PTH119 - compared with thousands of strings
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if (
            isinstance(file, str)
            and os.path.basename(file) == base  # noqa: PTH119
            and os.path.realpath(file) == os.path.realpath(place)
        ):
            yield module
    for script in _SCRIPTS:
        running = sys.modules.get(script)
        if running is not None and _script_name(running) == place:
            yield running


def _script_name(module: ModuleType | None) -> str | None:
    spec = getattr(module, "__spec__", None)
    if spec is not None and spec.name not in _SCRIPTS:
        return str(spec.name)
    file = getattr(module, "__file__", None)
    return os.path.realpath(file) if file else None
