"""An operation as the arguments of apply.lua, whose header explains them."""

from __future__ import annotations

from typing import NamedTuple

from celery_exclusive.core.operations import Acquire, AcquireAlone, Break, KeyOperation, Release, Restore
from celery_exclusive.core.records import Phase


class Arguments(NamedTuple):
    """The arguments that depend on the operation. After `former` stands its token, or the message."""

    verb: str
    id: str = ""
    token: str = ""
    ttl: int = 0
    limit: int | Phase = 0
    delivery: str = ""
    ending: str = "open"
    max_waiting: int | str = ""
    former: tuple[object, ...] = ("",)


def arguments_of(operation: KeyOperation) -> Arguments:
    id = operation.id
    if isinstance(operation, Acquire):
        return _of_acquire(operation)
    if isinstance(operation, AcquireAlone):
        former = operation.former or ("",)
        return Arguments("acquire_alone", id, operation.token, operation.ttl, operation.phase, former=former)
    if isinstance(operation, Release):
        return Arguments("release", id, operation.token, operation.keep, ending=operation.ending)
    if isinstance(operation, Restore):
        return Arguments("restore", id, operation.token, operation.ttl, operation.limit)
    if isinstance(operation, Break):
        return Arguments("break", id)
    return Arguments("remove", id, ending=operation.ending)


def _of_acquire(acquire: Acquire) -> Arguments:
    delivery = "fresh" if acquire.promoted is None else f"promoted {acquire.promoted}"
    id, phase = acquire.former or ("", "")
    former: tuple[object, ...] = (f"{phase} {id}" if phase else "",)
    return Arguments(
        "acquire",
        acquire.id,
        acquire.token,
        acquire.ttl,
        acquire.limit,
        "redelivered" if acquire.redelivered else delivery,
        "late" if acquire.acks_late else "early",
        "" if acquire.max_waiting is None else acquire.max_waiting,
        former if acquire.message is None else (*former, acquire.message),
    )
