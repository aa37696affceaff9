"""Computes keys from the arguments of calls. Pure, apart from reading signatures.

The text of a key is in `options.key_text`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import BoundArguments, Parameter, Signature
from operator import attrgetter
from traceback import walk_tb
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from celery_exclusive.core.room import NO_LIMIT, Share
from celery_exclusive.errors import OptionError, did_you_mean, shown
from celery_exclusive.options.amounts import A_COUNT, A_WEIGHT, is_count, is_weight
from celery_exclusive.options.canonical import (
    ABSENT,
    HEADER_PATH,
    MOST_CHARACTERS,
    Refused,
    at,
    digest,
    model,
    normal,
    scalar,
    type_name,
    unwrap,
)
from celery_exclusive.options.declared import Exclusive
from celery_exclusive.options.key_headers import PARAMETER, own_headers, takes_headers
from celery_exclusive.options.key_text import TOO_LONG, absolute_key, fitted, own_key
from celery_exclusive.options.option import ALL, Option
from celery_exclusive.options.templates import Field, as_function, parse_template

_PACKAGE = __name__.partition(".")[0]
_Run = Callable[..., object]
_Args = Sequence[object] | None
_Kwargs = Mapping[str, object] | None
_Headers = Mapping[str, object] | None
_Call = tuple[Sequence[object], Mapping[str, object]]


class _Parameters(NamedTuple):
    """The parameters of a task, with a faster way than `Signature.bind` for most calls.

    `required`: without default. `defaults`: in order; None if not every argument can be given by its name.
    """

    signature: Signature
    by_place: tuple[str, ...]
    required: frozenset[str]
    defaults: dict[str, Any] | None

    @classmethod
    def of(cls, signature: Signature) -> _Parameters:
        parameters = signature.parameters
        required = {name for name, one in parameters.items() if one.default is Parameter.empty}
        kinds = {name: one.kind for name, one in parameters.items()}
        by_place = tuple(name for name, kind in kinds.items() if kind is Parameter.POSITIONAL_OR_KEYWORD)
        is_simple = set(kinds.values()) <= {Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY}
        defaults = {name: one.default for name, one in parameters.items()} if is_simple else None
        return cls(signature, by_place, frozenset(required), defaults)


class AsCalled:
    """A function as `key=` that gets the arguments in the form in which the call gives them."""

    def __init__(self, function: Callable[..., str]) -> None:
        self._function = function
        self.__qualname__ = function.__qualname__  # for the representation of the option

    def __call__(self, *args: object, **kwargs: object) -> str:
        return self._function(*args, **kwargs)


_known: WeakKeyDictionary[_Run, dict[bool, _Parameters]] = WeakKeyDictionary()


def check(task_name: str, run: _Run, option: Option) -> None:
    """Raise OptionError, when a task is registered, if no key can be made from its parameters."""
    signature = _parameters(run).signature
    parameters = signature.parameters
    try:
        if callable(option.key):
            _check_function(option.key, signature, "key")
        takes_any = _takes_any_name(signature)
        others = list[str]()
        if isinstance(option, Exclusive):
            for word, value in (("cost", option.cost), ("weight", option.part_weight)):
                others += [value] if isinstance(value, str) else []
                if callable(value):
                    _check_function(value, signature, word)
            others += _check_parts(option, signature)
        for name in (*(named(option) or ()), *others):
            if name not in parameters and not takes_any:
                raise Refused(_no_parameter(name, parameters))
        if isinstance(option.key, str):
            name = option.key.partition(".")[0]
            if name in parameters:
                raise Refused(
                    f"it is one key for all calls, and there is a parameter {name!r}: write "
                    f"key='{{{option.key}}}' for its value, or for one key a text that no parameter has as "
                    "its name."
                )
    except Refused as refused:
        raise _error(task_name, option, refused) from refused.__cause__


def _check_parts(option: Exclusive, signature: Signature) -> Iterable[str]:
    """Check the function of its parts, or return the parameters that their template names."""
    if option.weight != 1:
        raise Refused("weight= is for its parts: write per=Exclusive('tenant_id', weight=...).")
    key = option.part_key
    if callable(key):
        _check_function(key, signature, "per")
    names = [field.path[0] for field in parse_template(key, "per")[0]] if isinstance(key, str) else []
    if isinstance(key, str) and not names:
        raise Refused(f"per={key!r} is one part for all calls: name a parameter, as in per='tenant_id'.")
    return names


def doubt(task_name: str, run: _Run, option: Option) -> str | None:
    """Return a warning if a wrapper of the task hides names that its keys need: calls would share keys."""
    signature = _parameters(run).signature
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    if (
        kinds != {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}
        or callable(option.key)
        or named(option) == ()
    ):
        return None
    return (
        f"task {task_name!r}, {option.attribute}={option!r}: it takes {signature}, so an argument given by "
        "place has no name here, and f(1) and f(x=1) have different keys. If a decorator wraps the task's "
        "function, give its wrapper @functools.wraps(function)"
    )


def key_of(
    task_name: str,
    run: _Run,
    option: Option,
    args: _Args,
    kwargs: _Kwargs,
    headers: _Headers = None,
    in_key: tuple[str, ...] = (),
) -> str:
    """Return the key for which a call competes. `in_key`: the names of headers that are part of every key.

    OptionError: an argument has no stable form. TypeError: the arguments do not fit.
    """
    chosen = {name: (headers or {}).get(name, ABSENT) for name in in_key} if in_key else None
    try:
        if option.key is not None:
            text = _absolute_text(option.key, bind(run, args, kwargs), (args or (), kwargs or {}), headers)
            return absolute_key(_with_headers(text, chosen) if chosen else text, option.kind)
        names = option.names
        if names is None:
            own = own_key(task_name, option.kind)
            return f"{own}:{digest({}, chosen)}" if chosen else own
        bound = bind(run, args, kwargs)
        given = bound.arguments
        if names != ALL:
            given = {name: given[name] if name in given else argument(bound, name) for name in names}
        return f"{own_key(task_name, option.kind)}:{digest(given, chosen)}"
    except Refused as refused:
        raise _error(task_name, option, refused) from refused.__cause__


def share_of(
    task_name: str,
    run: _Run,
    option: Exclusive,
    args: _Args,
    kwargs: _Kwargs,
    headers: _Headers = None,
    most_of: Callable[[Exclusive], int] = attrgetter("most"),
) -> Share:
    """Return what a call takes of its key, or raise OptionError. `most_of`: the limit of an option."""
    if isinstance(option.cost, int) and option.per is None:
        return Share(option.cost)
    try:
        bound = bind(run, args, kwargs)
        cost = _number(option.cost, bound, "cost")
        if not is_count(cost):
            raise Refused(f"cost= is {shown(cost)} for this call, and must be {A_COUNT}.")
        if (key := option.part_key) is None:
            return Share(int(cost))
        weight = _number(option.part_weight, bound, "weight")
        if not is_weight(weight):
            raise Refused(f"weight= is {shown(weight)} for this call, and must be {A_WEIGHT}.")
        text = _text_by(key, bound, (args or (), kwargs or {}), headers, "per")
        if not isinstance(text, str) or len(text) > MOST_CHARACTERS:
            what = TOO_LONG if isinstance(text, str) else f"a {type_name(text)}"
            raise Refused(f"per= returned {what}. It must return a string that names a part of the calls.")
    except Refused as refused:
        raise _error(task_name, option, refused) from refused.__cause__
    share, of_part = Share(int(cost), fitted(text), int(weight)), option.part_option
    if of_part is None or not option.limits_parts:
        return share
    return share._replace(
        limit=most_of(of_part) if of_part.has_given_limit else NO_LIMIT, rates=of_part.rates
    )


def _number(value: Any, bound: BoundArguments, name: str) -> Any:
    """Return a number that is given, an argument, or what a function returns."""
    if isinstance(value, str):
        return argument(bound, value)
    if not callable(value):
        return value
    by_place, by_name = _arguments_of(value, bound, None)
    try:
        return value(*by_place, **by_name)
    except Exception as error:
        raise Refused(f"{name}= raised {_cause(error)}. Correct the function.") from error


def _error(task_name: str, option: Option, refused: Refused) -> OptionError:
    where = refused.path
    if where:
        where = f"{where} " if where.startswith(HEADER_PATH) else f"argument {where} "
    return OptionError(f"task {task_name!r}, {option.attribute}={option!r}: {where}{refused.problem}")


def needs_headers(option: Option, run: _Run, in_key: tuple[str, ...] = ()) -> bool:
    """Whether the key of a call also depends on headers of its message."""
    return bool(in_key) or (
        callable(option.key) and _is_given_headers(option.key, _parameters(run).signature)
    )


def named(option: Option) -> tuple[str, ...] | None:
    """Return the parameters that an option names, in by= or in its template; None: all of them."""
    if isinstance(option.key, str):
        return tuple(field.path[0] for field in parse_template(option.key)[0])
    return None if option.key is not None or option.names == ALL else option.names or ()


def _parameters(run: _Run) -> _Parameters:
    function = getattr(run, "__func__", run)  # a bound method is a new object each time it is looked up
    is_bound = function is not run
    cached = _known.get(function)
    if cached is None:
        cached = _known[function] = {}
    if is_bound not in cached:
        cached[is_bound] = _Parameters.of(inspect.signature(run))
    return cached[is_bound]


def bind(run: _Run, args: _Args, kwargs: _Kwargs) -> BoundArguments:
    """Return the arguments of a call by the names of their parameters, with all defaults."""
    signature, by_place, required, defaults = _parameters(run)
    args, kwargs = args or (), kwargs or {}
    if defaults is not None and len(args) <= len(by_place):  # most calls, in a fifth of the time
        given = dict(zip(by_place, args, strict=False))
        if kwargs:
            given.update(kwargs)
        arguments = {**defaults, **given}
        is_clear = len(given) == len(args) + len(kwargs)
        if is_clear and given.keys() >= required and len(arguments) == len(defaults):
            return BoundArguments(signature, arguments)
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return bound


def argument(bound: BoundArguments, name: str) -> object:
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


def _check_function(key: Callable[..., object], signature: Signature, name: str) -> None:
    try:
        _is_called_by_name(key, signature)
    except TypeError as error:
        text = (
            f"{name}= is called with the arguments of the task, {signature}, but does not accept them "
            f"({error})."
        )
        raise Refused(text) from error


def _is_called_by_name(key: Callable[..., object], signature: Signature) -> bool:
    """Whether a function takes the arguments by name, as with **kwargs alone; TypeError: nor by place."""
    named = {name: parameter.kind for name, parameter in signature.parameters.items()}
    by_name = [name for name, kind in named.items() if kind is Parameter.KEYWORD_ONLY]
    by_place = [name for name, kind in named.items() if kind < Parameter.VAR_POSITIONAL]
    try:
        accepts = inspect.signature(key)
    except (ValueError, TypeError):
        return False  # written in C: the first call will show it
    if _is_given_headers(key, signature):
        by_name.append(PARAMETER)
    try:
        accepts.bind(*by_place, **dict.fromkeys(by_name))
    except TypeError:
        if Parameter.VAR_POSITIONAL in named.values() or not _takes_any_name(accepts):
            raise
        accepts.bind(**dict.fromkeys([*by_place, *by_name]))
        return True
    return False


def _is_given_headers(key: Callable[..., object], signature: Signature) -> bool:
    """Whether a function gets the headers of the message. A task's own parameter `headers` goes before."""
    return takes_headers(key) and PARAMETER not in signature.parameters


def _may_take_kwargs(key: Callable[..., object]) -> bool:
    """Whether the signature has to be read, which takes as long as all the rest of a key."""
    code = getattr(key, "__code__", None)
    return code is None or bool(code.co_flags & inspect.CO_VARKEYWORDS)


def _takes_any_name(signature: Signature) -> bool:
    return any(parameter.kind is Parameter.VAR_KEYWORD for parameter in signature.parameters.values())


def _absolute_text(
    key: str | Callable[..., object], bound: BoundArguments, call: _Call, headers: _Headers
) -> str:
    text = _text_by(key, bound, call, headers, "key")
    if not isinstance(text, str) or not 0 < len(text) <= MOST_CHARACTERS:
        what = f"a {type_name(text)}"
        if isinstance(text, str):
            what = TOO_LONG if text else "an empty string"
        raise Refused(
            f"key= returned {what}. It must return a string that names what is locked, like 'repo:17'."
        )
    return text


def _text_by(
    key: str | Callable[..., object], bound: BoundArguments, call: _Call, headers: _Headers, name: str
) -> object:
    """Return what a template or a function makes of the arguments."""
    if isinstance(key, str):
        fields, end = parse_template(key, name)
        shown = (field.before + field.show(_text_of(bound, field.path, name)) for field in fields)
        return "".join((*shown, end))
    try:
        args, kwargs = call if isinstance(key, AsCalled) else _arguments_of(key, bound, headers)
        return key(*args, **kwargs)
    except OptionError:
        raise
    except Exception as error:
        raise Refused(f"{name}= raised {_cause(error)}. Correct the function.") from error


def _arguments_of(key: Callable[..., object], bound: BoundArguments, headers: _Headers) -> _Call:
    args, kwargs = bound.args, bound.kwargs
    if _may_take_kwargs(key) and _is_called_by_name(key, bound.signature):
        args, kwargs = (), {**dict(zip(bound.signature.parameters, args, strict=False)), **kwargs}
    if _is_given_headers(key, bound.signature):
        kwargs = {**kwargs, PARAMETER: own_headers(headers)}
    return args, kwargs


def _cause(error: Exception) -> str:
    """Return the type of an error, with the text if arguments do not fit: others may show their values."""
    raised_in = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)][-1]
    is_bad_call = isinstance(error, TypeError) and raised_in.partition(".")[0] == _PACKAGE
    return f"{type(error).__name__}: {error}" if is_bad_call else type(error).__name__


def _text_of(bound: BoundArguments, path: tuple[str, ...], word: str) -> str:
    value, done = argument(bound, path[0]), path[0]
    for step in path[1:]:
        try:
            value = getattr(value, step)
        except Exception as error:
            fix = as_function(path[0], step, word) if isinstance(value, Mapping) else f"correct {word}="
            text = f"is a {type_name(value)} without a readable .{step} ({type(error).__name__}): {fix}."
            raise Refused(text, done) from error
        done += f".{step}"
    with at(done):
        fix = f"name an attribute of it, as in {{project.pk}}, or use a function as {word}="
        if isinstance(value, (Mapping, list, tuple)):
            fix = as_function(path[0], "id" if isinstance(value, Mapping) else 0, word)
        return _shown(value, fix)


def _shown(value: object, fix: str) -> str:
    value = unwrap(value)
    record = model(value)
    tagged = scalar(unwrap(record[1]) if record else value)
    if tagged is None:
        raise Refused(f"is a {type_name(value)}, which a template cannot show: {fix}.")
    if len(tagged[1]) > MOST_CHARACTERS:
        raise Refused(f"is {TOO_LONG}, too large for a key: use another argument, or a part of it.")
    return normal(tagged[1])


def _with_headers(text: str, headers: Mapping[str, object]) -> str:
    """Return a text with headers after it: "repo:17 _schema_name=acme". A missing header has no "=".

    Each value is escaped, so that different values never make one text.
    """
    shown, ends = [text], [f" {name}" for name in headers]
    for name, value in headers.items():
        with at(f"{HEADER_PATH}{name!r}"):
            shown.append("" if value is ABSENT else f"={_shown(value, 'send a string')}")
    fields = [Field(before, (), until) for before, until in zip(["", *ends], [*ends, ""], strict=True)]
    return "".join(field.before + field.show(value) for field, value in zip(fields, shown, strict=True))
