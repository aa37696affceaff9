"""From the arguments of a call to the key it competes for. Pure, apart from looking at signatures."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from inspect import BoundArguments, Parameter, Signature
from typing import Final
from weakref import WeakKeyDictionary

from celery_exclusive.canonical import (
    AS_THEY_ARE,
    Refused,
    at,
    digest,
    model,
    scalar,
    type_name,
    unwrap,
    utf8,
)
from celery_exclusive.declaration import Declaration
from celery_exclusive.errors import OptionError, did_you_mean
from celery_exclusive.templates import parse_template

_Run = Callable[..., object]
_Args = Sequence[object] | None
_Kwargs = Mapping[str, object] | None

_MAX_TEXT: Final = 200  # bytes: with a prefix this fits into the 250 of memcached
_signatures: WeakKeyDictionary[_Run, dict[bool, Signature]] = WeakKeyDictionary()


def check(task_name: str, run: _Run, option: Declaration) -> None:
    """Raise OptionError if no key can be made from the parameters of this task. `run` is `task.run`.

    Call it once, when the task is registered.
    """
    with _told(task_name, option):
        signature = _signature(run)
        parameters = signature.parameters
        if option.key is None:
            names = () if option.names == ("*",) else option.names or ()
        elif isinstance(option.key, str):
            names = tuple(path[0] for _, path in _template(option.key) if path)
        else:
            names = ()
            _check_function(option.key, signature)
        takes_any = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values())
        for name in names:
            if name not in parameters and not takes_any:
                raise Refused(_no_parameter(name, parameters))


def key_of(task_name: str, run: _Run, option: Declaration, args: _Args, kwargs: _Kwargs) -> str:
    """Return the key for which a call with these arguments competes.

    Raises OptionError if an argument has no stable text, and Python's TypeError if the arguments do not fit.
    """
    if option.names is None and option.key is None:
        return f"{option.kind}:{task_name}"
    bound = _bind(run, args, kwargs)
    with _told(task_name, option):
        if option.key is not None:
            return absolute_key(_absolute_text(option.key, bound), option.kind)
        names = bound.arguments if option.names == ("*",) else option.names or ()
        return f"{option.kind}:{task_name}:{digest({name: _argument(bound, name) for name in names})}"


def absolute_key(text: str, kind: str = "x") -> str:
    """Return the key of a text that tasks share: "x:" or "u:", and up to 200 bytes.

    A longer text is cut and completed with a hash, as is one that is no valid Unicode.
    """
    if not text:
        raise OptionError("the key of a lock cannot be an empty text: name what is locked, like 'repo:17'.")
    data = utf8(text)
    try:
        if len(data) <= _MAX_TEXT:
            return f"{kind}:{data.decode()}"
    except UnicodeDecodeError:
        pass  # half a surrogate pair, which no store could keep
    start, end = data[: _MAX_TEXT - 33].decode(errors="ignore"), blake2b(data, digest_size=16).hexdigest()
    return f"{kind}:{start}~{end}"


def preview(run: _Run, option: Declaration, args: _Args, kwargs: _Kwargs, limit: int = 80) -> str:
    """Return a short text for people, "feed_url='https://…'", or "" where there is none. Never raises."""
    try:
        bound = _bind(run, args, kwargs)
        names: Iterable[str] = option.names or ()
        if isinstance(option.key, str):
            names = dict.fromkeys(path[0] for _, path in _template(option.key) if path)
        elif option.key is not None or names == ("*",):
            names = bound.arguments
        text = ", ".join(f"{name}={_shown(_argument(bound, name))}" for name in names)
    except Exception:  # noqa: BLE001 - a log line is not worth a task
        return ""
    return text if len(text) <= limit else text[: max(limit - 1, 0)] + "…"


@contextmanager
def _told(task_name: str, option: Declaration) -> Generator[None, None, None]:
    try:
        yield
    except Refused as refused:
        where = refused.path and f"argument {refused.path} "
        text = f"task {task_name!r}, {option.attribute}={option!r}: {where}{refused.problem}"
        raise OptionError(text) from refused.__cause__


def _signature(run: _Run) -> Signature:
    function = getattr(run, "__func__", run)  # a bound method is a new object each time it is looked up
    cached = _signatures.setdefault(function, {})
    is_bound = function is not run
    if is_bound not in cached:
        cached[is_bound] = inspect.signature(run)
    return cached[is_bound]


def _bind(run: _Run, args: _Args, kwargs: _Kwargs) -> BoundArguments:
    bound = _signature(run).bind(*(args or ()), **(kwargs or {}))
    bound.apply_defaults()
    return bound


def _argument(bound: BoundArguments, name: str) -> object:
    if name in bound.arguments:
        return bound.arguments[name]
    parameters = bound.signature.parameters
    for parameter in parameters.values():
        if parameter.kind is Parameter.VAR_KEYWORD:
            return bound.arguments[parameter.name].get(name)
    raise Refused(_no_parameter(name, parameters))


def _no_parameter(name: str, parameters: Mapping[str, Parameter]) -> str:
    there = f"there are {', '.join(parameters)}" if parameters else "the task takes none"
    return f"there is no parameter {name!r} ({there}){did_you_mean(name, parameters)}"


# Absolute keys --------------------------------------------------------------------------------------------


def _template(template: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    try:
        return parse_template(template)
    except ValueError as error:
        raise Refused(str(error)) from error.__cause__


def _check_function(key: Callable[..., str], signature: Signature) -> None:
    named = {name: parameter.kind for name, parameter in signature.parameters.items()}
    by_name = {name: None for name, kind in named.items() if kind is Parameter.KEYWORD_ONLY}
    by_place = [kind for kind in named.values() if kind < Parameter.VAR_POSITIONAL]
    try:
        accepts = inspect.signature(key)
    except (ValueError, TypeError):
        return  # written in C: the first call will show it
    try:
        accepts.bind(*by_place, **by_name)
    except TypeError as error:
        text = f"key= is called like the task, with {signature}, and does not take that ({error}): let it."
        raise Refused(text) from error


def _absolute_text(key: str | Callable[..., object], bound: BoundArguments) -> str:
    if isinstance(key, str):
        pairs = _template(key)
        text: object = "".join(text + (_field(bound, path) if path else "") for text, path in pairs)
    else:
        try:
            text = key(*bound.args, **bound.kwargs)
        except Exception as error:
            raise Refused(f"key= raised {type(error).__name__}: {error}. Correct the function.") from error
    if not isinstance(text, str) or not text:
        what = "an empty text" if isinstance(text, str) else f"a {type_name(text)}"
        raise Refused(f"key= gave {what}. It must give a text that names what is locked, like 'repo:17'.")
    return text


def _field(bound: BoundArguments, path: tuple[str, ...]) -> str:
    value, done = _argument(bound, path[0]), path[0]
    for step in path[1:]:
        try:
            value = getattr(value, step)
        except Exception as error:
            text = f"is a {type_name(value)} that gave no .{step} ({type(error).__name__}): correct key=."
            raise Refused(text, done) from error
        done += f".{step}"
    with at(done):
        value = unwrap(value)
        record = model(value)
        tagged = scalar(unwrap(record[1]) if record else value)
        if tagged is None:
            fix = "name an attribute of it, as in {project.pk}, or use a function as key="
            raise Refused(f"is a {type_name(value)}, which a template cannot show: {fix}.")
        return tagged[1]


_short = reprlib.Repr()
_short.maxstring = _short.maxlong = 60
_short.maxlevel = 2


def _shown(value: object) -> str:
    if type(value) in AS_THEY_ARE:
        return _short.repr(value)
    tag, text = scalar(value) or (b"", f"<{type_name(value)}>")
    return _short.repr(text) if tag == b"s" else text
