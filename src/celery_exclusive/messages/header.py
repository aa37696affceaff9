"""The header that this library puts on the messages of tasks with options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, replace
from dataclasses import fields as dataclass_fields
from functools import lru_cache, partial
from hashlib import blake2b
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from celery_exclusive.core.claim import FINISHED, PERIOD, STARTED, WINDOW, UniqueUntil
from celery_exclusive.options.amounts import is_number
from celery_exclusive.options.declared import NAMES

if TYPE_CHECKING:
    from celery_exclusive.services import Services

HEADER = "exclusive"
DELIVERY = ("exclusive_delivery",)
"""The field of a request with a worker's delivery for its child. No message has it: its name is no string."""
VERSION = 1
_LONGEST_TEXT = 1000
_MOST_TRIES = 2**31
_END_OF_TIME = 2**40
"""The latest time in a header, in seconds since 1970."""


@dataclass(slots=True)
class Header:
    """The header of a message, which survives redelivery and parking.

    * `id`: the publish id. `exclusive`, `unique`: its keys, and the event until which the latter is held.
      None: the publisher knows of no such option.
    * `duplicate_of`: the task that held the unique key when this message was published, or received.
    * `awaited`: other code waits for the result of this duplicate. `joins`: it waits in line for that task.
    * `promoted`: the epoch of the store, if this is the copy of an offer. `offered`: the key of that offer.
    * `published_by`: the task whose end or own body has published the message, as the next step of its chain,
      a link, or the body of its chord; it may still hold its lease.
    * `follows`: the publish id, with its queue, of the run whose unique lease this retry or replacement
      inherits. `keeps_lock`: its run leaves this retry the lease of its lock. `superseded_by`: the newer
      task, if that run was superseded.
    * `store`: the epoch of the publisher's store, if it knows it.
    * `redelivered`: the broker had delivered the message before it was parked.
    * `deaths`: of its workers, whose runs the store has recovered. `deaths_before`: in other lines. `ran_on`:
      the worker of its last run.
    * `masked`: the caller gave other strings to show instead of the arguments.
    * `tries`, `since`: of a rescheduled message; when it first found its key held, in seconds since 1970.
    * `rejections`: a digest of its returns through a dead-letter exchange before it was published.
    * `route`: the queue that this copy was consumed from, and the exchange and routing key that led there, if
      that publish may have reached other queues, too.
    * `auto_delete`: that queue is deleted when its worker ends.
    """

    id: str
    exclusive: str | None = None
    unique: tuple[str, UniqueUntil] | None = None
    switched_off: tuple[str, ...] = ()
    values: dict[str, dict[str, Any]] = field(default_factory=dict)
    duplicate_of: str | None = None
    awaited: bool = False
    joins: bool = False
    promoted: str | None = None
    offered: str | None = None
    published_by: str | None = None
    follows: str | None = None
    keeps_lock: bool = False
    superseded_by: str | None = None
    store: str | None = None
    redelivered: bool = False
    deaths: int = 0
    deaths_before: int = 0
    ran_on: str | None = None
    masked: bool = False
    tries: int = 0
    since: float | None = None
    rejections: str | None = None
    route: tuple[str, str, str] | None = None
    auto_delete: bool = False

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Header | None:
        """Make a header of fields as `write` returns them; ignore invalid ones."""
        if fields.get("v") != VERSION:
            return None
        found: dict[str, Any] = {}
        for name, value in fields.items():
            check = _CHECKS.get(name)
            if check and value is not None and check(value):
                found[name] = tuple(value) if isinstance(value, list) else value
        if "id" not in found or found.get("promoted") != fields.get("promoted"):
            return None
        return cls(**found)

    def as_new_publish(self, rejections: str) -> Header:
        """Return the header of the message after these rejections, as a new publish and no copy."""
        return replace(
            self,
            id=_digest(self.id, rejections),
            promoted=None,
            offered=None,
            redelivered=False,
            deaths=0,
            deaths_before=0,
            tries=0,
            since=None,
            rejections=rejections,
            route=None,
            auto_delete=False,
            keeps_lock=False,
        )

    def as_put(self, *salt: str, store: str | None) -> Header:
        """Return the header of a message that an operator publishes again, as a new publish of its task."""
        return replace(
            self,
            id=_digest(self.id, *salt),
            store=store,
            promoted=None,
            offered=None,
            published_by=None,
            follows=None,
            keeps_lock=False,
            redelivered=False,
            deaths=0,
            deaths_before=0,
            tries=0,
            since=None,
        )

    def claim_id(self, task_id: str) -> str:
        """Return the id of the message's claims. The copy of each queue has an id of its own."""
        return f"{task_id}/{self.id}@{_quoted(self.route[0])}" if self.route else f"{task_id}/{self.id}"

    def write(self) -> dict[str, Any]:
        """Return the fields for a message. Most have their default, and are left out."""
        fields = {
            name: value
            for name, value, default in zip(_NAMES, _values(self), _DEFAULTS, strict=True)
            if value is not default  # cheaper than a comparison, and equal to it but for one field
        }
        if not self.values:
            del fields["values"]
        return {"v": VERSION, **fields}


_quoted = lru_cache(partial(quote, safe=""))
_NAMES = [each.name for each in dataclass_fields(Header)]
_DEFAULTS = [
    each.default if each.default_factory is MISSING else each.default_factory()
    for each in dataclass_fields(Header)
]
_values = attrgetter(*_NAMES)


def read_header(
    services: Services, headers: Mapping[str, Any], task_id: str | None, task_name: str | None = None
) -> Header | None:
    """Return the header of a message, if it is valid for the task in the headers, or else for `task_name`."""
    fields: Any = headers.get(HEADER)
    if not isinstance(fields, dict):
        return None
    name = str(headers.get("task") or task_name)
    return Header.of(fields) if services.signer.accepts_header(fields, str(task_id), name) else None


def rejections(headers: Mapping[str, Any]) -> str | None:
    """Return a digest of the rejections after which a dead-letter exchange returned a message, if any.

    A message that expired in a queue, as RabbitMQ delays messages for Celery, remains the same message.
    """
    deaths = headers.get("x-death")
    if not isinstance(deaths, list):
        return None
    found = [
        tuple(str(death.get(name)) for name in ("queue", "count", "time"))
        for death in deaths
        if isinstance(death, dict) and death.get("reason") == "rejected"
    ]
    return _digest(*map(repr, sorted(found))) if found else None


def _digest(*texts: str) -> str:
    return blake2b("\n".join(texts).encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()


def _is_text(value: object) -> bool:
    """Whether every store can keep this string, which must have no half of a surrogate pair."""
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
        return False
    return value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value)


_LISTS = (list, tuple)
_TEXTS = (
    "id exclusive duplicate_of promoted offered published_by follows superseded_by store rejections ran_on"
)
_CHECKS: dict[str, Callable[[object], bool]] = {
    **dict.fromkeys(_TEXTS.split(), _is_text),
    "unique": lambda it: (
        isinstance(it, _LISTS)
        and len(it) == 2
        and _is_text(it[0])
        and it[1] in (FINISHED, STARTED, PERIOD, WINDOW)
    ),
    "switched_off": lambda it: isinstance(it, _LISTS) and all(name in NAMES for name in it),
    "values": lambda it: (
        isinstance(it, dict)
        and all(name in NAMES and isinstance(values, dict) for name, values in it.items())
    ),
    "route": lambda it: isinstance(it, _LISTS) and len(it) == 3 and all(map(_is_text, it)),
    **dict.fromkeys(
        ("redelivered", "masked", "auto_delete", "keeps_lock", "awaited", "joins"),
        lambda it: isinstance(it, bool),
    ),
    **dict.fromkeys(
        ("tries", "deaths", "deaths_before"),
        lambda it: isinstance(it, int) and not isinstance(it, bool) and 0 <= it <= _MOST_TRIES,
    ),
    "since": lambda it: is_number(it, at_least=0) and it < _END_OF_TIME,
}
"""The checks of each field, if it is given. A list of them is read as a tuple."""
