"""Between netspy's callbacks, ``(self, request, response)``, and Scrapy's, ``(response)``."""

from __future__ import annotations

import inspect
from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol

import scrapy.http

from netspy_scrapy.http.request import ANSWER, SEEN, Request
from netspy_scrapy.http.response import Response

if TYPE_CHECKING:
    from collections.abc import Callable

#: Methods that netspy calls itself, or that are not callbacks for another reason.
HOOKS = frozenset(
    {
        "start", "stop", "start_requests", "download_midware", "validate", "failed_request",
        "exception_request", "start_callback", "end_callback", "from_crawler", "update_settings",
        "closed", "close",
    }
)  # fmt: skip


class Converting(Protocol):
    """A spider that knows what to do with what its callbacks give."""

    def netspy_output(self, output: Any, where: str) -> Any:
        """Convert the output of a callback to what Scrapy takes."""


def adapt_callbacks(cls: type) -> None:
    """Give the methods of *cls* that may be callbacks the form that Scrapy calls.

    A method keeps its name, so requests that name it can be written to disk; called as netspy's
    code calls it, with a request and a response, it is the plain method.
    """
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] in {"scrapy", "netspy_scrapy", "builtins"}:
            continue
        members: list[tuple[str, Any]] = list(base.__dict__.items())
        for name, method in members:
            if (
                name not in HOOKS
                and not name.startswith("__")
                and inspect.isfunction(method)
                and not hasattr(method, "netspy_callback")
                and _is_current(cls, name, method)
                and _takes_two(method)
            ):
                setattr(cls, name, adapted(method))


def _is_current(cls: type, name: str, method: Any) -> bool:
    return getattr(cls, name, None) is method


def adapted(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return *method* in a form that takes ``(self, response)`` too."""

    @wraps(method)
    def callback(self: Converting, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and isinstance(args[0], scrapy.http.Response):
            return call_back(self, method, (self,), args[0], kwargs)
        return method(self, *args, **kwargs)

    callback.netspy_callback = True  # type: ignore[attr-defined]
    return callback


class FunctionCallback:
    """A callback that is no method of the spider: a function, a lambda, a partial."""

    netspy_callback = True

    def __init__(self, spider: Converting, function: Callable[..., Any]) -> None:
        self.spider = spider
        self.wrapped = function
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def __call__(self, response: scrapy.http.Response, **kwargs: Any) -> Any:
        """Call the function for an answer."""
        return call_back(self.spider, self.wrapped, (), response, kwargs)


def call_back(
    spider: Converting,
    function: Callable[..., Any],
    owner: tuple[Any, ...],
    response: scrapy.http.Response,
    kwargs: dict[str, Any],
) -> Any:
    """Call a netspy callback for an answer, and convert what it gives."""
    request, answer = views(response)
    output = function(*owner, request, answer, **kwargs)
    return spider.netspy_output(output, getattr(function, "__name__", repr(function)))


def views(response: scrapy.http.Response) -> tuple[Any, Response]:
    """Return the request and the answer as netspy's code is to see them: the same ones each time.

    What ``validate`` notes on them is there in the callback.
    """
    core = response.request
    request = view(core)
    known: Response | None = core.__dict__.get(ANSWER) if isinstance(core, Request) else None
    if known is None or known.raw is not response or known.request is not request:
        known = Response(response, request)
        if isinstance(core, Request):
            core.__dict__[ANSWER] = known
    return request, known


def view(request: scrapy.Request | None) -> Any:
    """Return *request* as netspy's code is to see it: the same object each time.

    One that the spider has yielded again is on its way, and no longer shown.
    """
    if not isinstance(request, Request):
        return request
    known: Request | None = request.__dict__.get(SEEN)
    if known is not None and not known.is_sealed:
        return known
    seen = request.__dict__[SEEN] = request.unsealed()
    if isinstance(seen.callback, FunctionCallback):
        seen.callback = seen.callback.wrapped
    return seen


def _takes_two(method: Callable[..., Any]) -> bool:
    """Tell whether *method* can be called with a request and a response."""
    try:
        inspect.signature(method).bind(None, None, None)
    except TypeError:
        parameters = list(inspect.signature(method).parameters.values())
        # A callback whose further arguments come from cb_kwargs.
        positional = [
            p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        return len(positional) >= 3  # noqa: PLR2004
    return True
