"""The call in a stored message, as operators may see it: its task, its queue and its arguments."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from celery_exclusive.messages.header import Header
from celery_exclusive.messages.stored import StoredMessage
from celery_exclusive.options.preview import given_preview, preview, written_preview

if TYPE_CHECKING:
    from celery_exclusive.services import Services

_LONGEST: Final = 2_000
"""Celery cuts `argsrepr` and `kwargsrepr` to 1,024 characters. Longer ones are not parsed."""


@dataclass(frozen=True, slots=True)
class StoredCall:
    """A call whose message a store has.

    `queue`: the routing key. `args`, and the `args_of_key` that make the key: shortened, and None if they may
    not be shown. `callers`: its parent, and the root of both.
    """

    task: str | None = None
    queue: str = ""
    args: str | None = None
    args_of_key: str | None = None
    callers: tuple[str, ...] = ()
    deaths: int = 0


UNKNOWN: Final = StoredCall()


def read_call(services: Services, key: str, id: str, kept: bytes) -> StoredCall:
    """Read the call in a stored message; one without a valid signature is not shown. Never raises."""
    with suppress(Exception):
        if kept and (opened := services.signer.open_parked(kept, key, id)):
            return _of(services, key, StoredMessage.load(opened))
    return UNKNOWN


def _of(services: Services, key: str, stored: StoredMessage) -> StoredCall:
    headers = stored.headers
    name, header = headers.get("task"), Header.of(stored.our_header)
    task = services.app.tasks.get(name) if isinstance(name, str) else None
    callers = {str(id): None for id in (headers.get("parent_id"), headers.get("root_id")) if id}
    callers.pop(str(headers.get("id")), None)  # it is its own root
    call = StoredCall(
        str(name) if name else None,
        str(stored.routing_key),
        callers=tuple(callers),
        deaths=header.deaths if header else 0,
    )
    if not services.settings.exclusive_preview or header is None or headers.get("argsrepr") is None:
        return call
    if header.masked:
        given = given_preview(headers) or None
        return replace(call, args=given, args_of_key=given)
    option = services.unique(task) if key[:1] != "x" else services.exclusive(task)
    arguments = _arguments(headers)
    texts = [str(headers.get(name) or "") for name in ("argsrepr", "kwargsrepr")]
    written = written_preview(task and task.run, texts)
    if task is None or arguments is None:
        return replace(call, args=written, args_of_key=written)
    every = preview(task.run, None, *arguments) or written
    of_key = preview(task.run, option, *arguments) if option else None
    return replace(call, args=every, args_of_key=of_key)


def _arguments(headers: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the arguments that Celery has written into a message. None: they cannot be read back."""
    texts = [str(headers.get(name)) for name in ("argsrepr", "kwargsrepr")]
    if any(len(text) > _LONGEST or "..." in text for text in texts):
        return None
    with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        args, kwargs = (literal_eval(text) for text in texts)
        if isinstance(args, (tuple, list)) and isinstance(kwargs, dict):
            return tuple(args), kwargs
    return None
