"""The options of one call: the options of its task with the changes of the call and of Celery."""

from __future__ import annotations

from functools import lru_cache
from inspect import signature
from typing import TYPE_CHECKING, Any, NamedTuple

from celery import Celery

from celery_exclusive.errors import OptionError, closest, did_you_mean, shown
from celery_exclusive.options.declared import FAMILIES, KINDS, NAMES, Exclusive, UniqueOption
from celery_exclusive.seams.celery_app import own_options

if TYPE_CHECKING:
    from celery_exclusive.options.option import Option
    from celery_exclusive.services import Services

_PARAMETERS = signature(Celery.send_task).parameters
_CELERYS = {"queue", "exchange", "routing_key", "priority", "serializer", "compression", "delivery_mode"}
_CELERYS |= {"immediate", "mandatory", "ignore_result", *_PARAMETERS}
"""Options that most calls have, and that Celery knows."""
_TYPES = frozenset(KINDS)
_NOT_ROUTED = frozenset(_PARAMETERS) | {"ignore_result"}
"""The options that Celery shows to no router, and accepts from none."""
_MERGES_BY_NAME = _PARAMETERS["expires"].default is not None
"""Whether a call by name has the options of its task, as since Celery 5.7, where None clears one."""
_RARE = frozenset({"router", "connection", "publisher"})


class CallOptions(NamedTuple):
    """The options that a call switches off, and the values that it gives, as a message carries them."""

    exclusive: Exclusive | None
    unique: UniqueOption | None
    off: tuple[str, ...]
    values: dict[str, dict[str, Any]]


def pop_call_options(name: str, task: Any, options: dict[str, Any]) -> CallOptions:
    """Remove `exclusive=` and `unique=` from the options of a call, and return them.

    OptionError: no such value, or no option is declared, so that workers would not look for one.
    """
    exclusive, unique = getattr(task, "exclusive", None), getattr(task, "unique", None)
    exclusive = exclusive if isinstance(exclusive, Exclusive) else None
    unique = unique if isinstance(unique, UniqueOption) else None
    declared = CallOptions(exclusive, unique, (), {})
    if options.keys() <= _CELERYS and _TYPES.isdisjoint(map(type, options.values())):
        return declared
    _refuse_misspelt(name, options)
    chosen = {word: options.pop(word) for word in NAMES if word in options}
    for word, option in chosen.items():
        if option is None:
            continue
        if not isinstance(option, FAMILIES[word]):
            raise OptionError(
                f"task {name}: {word}={option!r} is not an option of a call; give it "
                f"{word}={word.capitalize()}(...), or switch it off with {word}=None"
            )
        if not (declared.exclusive or declared.unique):
            raise OptionError(
                f"task {name}: {word}={option!r} in a call does nothing, since the task has no options "
                "or is unknown here: declare an option at the task, and let the call change it"
            )
    off = tuple(word for word, option in chosen.items() if option is None)
    given = {word: option for word, option in chosen.items() if option is not None}
    values = {word: _values(name, option, getattr(declared, word)) for word, option in given.items()}
    return declared._replace(**chosen, off=off, values=values)


def _values(name: str, option: Option, declared: Option | None) -> dict[str, Any]:
    """Return the values of a call's option as its message carries them.

    A worker has the functions of the task alone: a number in their place is carried, another one refused.
    """
    functions = declared.functions if declared else {}
    values = option.values
    for word, value in option.functions.items():
        if word != "key" and value is not functions.get(word):
            raise OptionError(
                f"task {name}: {word}={shown(value)} is a function, which no message carries: give the call "
                "a value, or the function to the task"
            )
    numbers = (word for word in functions if word != "key" and not callable(getattr(option, word, None)))
    return values | {word: getattr(option, word) for word in numbers if hasattr(option, word)}


def as_sent(
    services: Services, task: Any, name: str, args: Any, kwargs: Any, options: dict[str, Any]
) -> dict[str, Any]:
    """Return the options with which Celery will send a call: merged with the task's options, and routed.

    `Celery.send_task` does both later, and shows the result to no caller. These options it leaves as they
    are, so keys and places in line follow the message that is sent.
    """
    if _MERGES_BY_NAME and task is not None and "task_type" not in options:
        own = {option: value for option, value in own_options(task).items() if value is not None}
        options = {**own, **options, "task_type": task}
    if not services.amqp.routes and options.keys().isdisjoint(_RARE):
        return options
    return _routed(services.amqp, name, args, kwargs, options)


def _routed(amqp: Any, name: str, args: Any, kwargs: Any, options: dict[str, Any]) -> dict[str, Any]:
    to_route = {option: value for option, value in options.items() if option not in _NOT_ROUTED}
    others = {option: value for option, value in options.items() if option in _NOT_ROUTED}
    router, connection = others.pop("router", None), others.pop("connection", None)
    publisher = others.pop("publisher", None)
    if connection:
        others["producer"] = amqp.Producer(connection, auto_declare=False)
    elif publisher and not others.get("producer"):
        others["producer"] = publisher
    route_name, task_type = others.get("route_name") or name, others.get("task_type")
    routed = (router or amqp.router).route(to_route, route_name, args, kwargs, task_type)
    refused = {option: routed.pop(option) for option in routed.keys() & _NOT_ROUTED}
    return {**others, **routed, "router": _Routed(refused)}


class _Routed:
    """A router in place of Celery's, for options that are routed: it only adds what Celery refuses."""

    def __init__(self, refused: dict[str, Any]) -> None:
        self.refused = refused

    def route(self, options: dict[str, Any], *_: Any) -> dict[str, Any]:
        return {**options, **self.refused}


def _refuse_misspelt(name: str, options: dict[str, Any]) -> None:
    for word, given in options.items():
        if word in NAMES:
            continue
        if isinstance(given, KINDS) or (given is None and word not in _CELERYS and _is_misspelt(word)):
            raise OptionError(
                f"task {name}: {word}={given!r} is no option of a call{did_you_mean(word, NAMES)}"
            )


@lru_cache
def _is_misspelt(word: str) -> bool:
    return closest(word, NAMES) is not None
