"""The spider's logger: netspy users write ``{}``, Scrapy users ``%s``; both print right."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import MutableMapping


class _Message:
    """A message that is put together only if some handler prints it."""

    __slots__ = ("args", "kwargs", "text")

    def __init__(self, text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.text = text
        self.args = args
        self.kwargs = kwargs

    def __str__(self) -> str:
        if self.args and "%" in self.text:
            try:
                return self.text % self.args
            except (TypeError, ValueError):
                pass
        try:
            return self.text.format(*self.args, **self.kwargs)
        except (IndexError, KeyError, ValueError, AttributeError):
            return " ".join([self.text, *map(repr, self.args)])


class SpiderLogger(logging.LoggerAdapter):  # type: ignore[type-arg]
    """Takes ``info("{} pages", 3)``, ``info("%d pages", 3)`` and ``info("{n} pages", n=3)``."""

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        """Log *msg* at *level*."""
        if not self.isEnabledFor(level):
            return
        known: MutableMapping[str, Any] = {
            key: kwargs.pop(key)
            for key in ("exc_info", "stack_info", "stacklevel", "extra")
            if key in kwargs
        }
        if self.exc_info:
            known.setdefault("exc_info", self.exc_info)
        known["stacklevel"] = known.get("stacklevel", 1) + 1
        message = _Message(str(msg), args, kwargs) if args or kwargs else msg
        message, known = self.process(message, known)
        self.logger.log(level, message, **known)

    def bind(self, **values: Any) -> SpiderLogger:
        """Return a logger whose records have *values* as attributes, as loguru's ``extra``."""
        return SpiderLogger(self.logger, {**(self.extra or {}), **values})

    def opt(self, *, exception: Any = None, **_: Any) -> SpiderLogger:
        """Return a logger that logs *exception* with each message, as loguru's; else this one."""
        if not exception:
            return self
        logger = SpiderLogger(self.logger, self.extra)
        logger.exc_info = exception
        return logger

    exc_info: Any = None

    def success(self, msg: object, *args: Any, **kwargs: Any) -> None:
        """Log at INFO, as loguru's level between INFO and WARNING."""
        self.log(logging.INFO, msg, *args, **kwargs)

    def trace(self, msg: object, *args: Any, **kwargs: Any) -> None:
        """Log at DEBUG, as loguru's level below DEBUG."""
        self.log(logging.DEBUG, msg, *args, **kwargs)
