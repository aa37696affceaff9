"""The options of a call as Celery will send it: merged with those of its task, and routed.

`Celery.send_task` does both, and nobody sees the result before the message is made. So they are done here,
and Celery is given the result: what keys go by is what is sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any

from celery import Celery
from celery.app import task as celery_task

if TYPE_CHECKING:
    from celery_exclusive.services import Services

_options_of: Any = vars(celery_task)["extract_exec_options"]
_PARAMETERS = signature(Celery.send_task).parameters
_NOT_ROUTED = frozenset(_PARAMETERS) | {"ignore_result"}
"""The options that Celery shows to no router, and accepts from none."""
_MERGES_BY_NAME = _PARAMETERS["expires"].default is not None
"""Whether a call by name has the options of its task, as since Celery 5.7, where None clears one."""
_RARE = frozenset({"router", "connection", "publisher"})


def as_sent(
    services: Services, task: Any, name: str, args: Any, kwargs: Any, options: dict[str, Any]
) -> dict[str, Any]:
    """Return options of a call with which Celery changes nothing any more."""
    if _MERGES_BY_NAME and task is not None and "task_type" not in options:
        own = {option: value for option, value in _options_of(task).items() if value is not None}
        options = {**own, **options, "task_type": task}
    if not services.amqp.routes and _RARE.isdisjoint(options):
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


@dataclass(frozen=True, slots=True)
class _Routed:
    """Stands for a router whose answer is among the options already, but for what Celery refuses in one."""

    refused: dict[str, Any]

    def route(self, options: dict[str, Any], *_: Any) -> dict[str, Any]:
        return {**options, **self.refused}
