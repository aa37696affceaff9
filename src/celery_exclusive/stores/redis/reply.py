"""Translates the reply of a script into the store's answer."""

from __future__ import annotations

import re
from typing import Any, Final, get_args

from celery_exclusive.core.operations import Answer, Applied, Full, Granted, Held, Owner, Parked, Stale
from celery_exclusive.core.records import OwnerPhase
from celery_exclusive.stores.base import Reply, Wake
from celery_exclusive.stores.text import to_text

_FULL: Final = 2
_PHASES: Final[dict[bytes, OwnerPhase]] = {phase.encode(): phase for phase in get_args(OwnerPhase)}


def read_reply(reply: Any, *, is_sweep: bool) -> Reply:
    """Read the whole reply of apply.lua."""
    name, number, owners, epoch, wakes, asides, unreadable, time = reply
    return Reply(
        _answer(name, number, owners),
        tuple(
            Wake(to_text(key), to_text(id), message, to_text(epoch), waiting, deaths)
            for key, id, message, waiting, deaths in zip(*[iter(wakes)] * 5, strict=True)
        ),
        tuple((to_text(asides[i]), to_text(asides[i + 1])) for i in range(0, len(asides), 2)),
        to_text(epoch),
        more=is_sweep and number == _FULL,
        unreadable=tuple(
            (to_text(unreadable[i]), shorten(unreadable[i + 1].decode(errors="replace")))
            for i in range(0, len(unreadable), 2)
        ),
        time=time,
    )


def _answer(name: bytes, number: int, owners: list[Any]) -> Answer:
    if name == b"granted":
        return Granted(number)
    if name == b"parked":
        return Parked(number, read_owners(owners))
    if name == b"held":
        return Held(read_owners(owners))
    if name == b"full":
        return Full(number, read_owners(owners))
    if name == b"stale":
        return Stale()
    return Applied(bool(number))


def read_owners(flat: list[Any]) -> tuple[Owner, ...]:
    return tuple(
        Owner(to_text(id), age, left, fence, _PHASES[phase], to_text(token))
        for id, age, left, fence, phase, token in zip(*[iter(flat)] * 6, strict=True)
    )


def shorten(problem: str) -> str:
    """Return a problem without its place in the script."""
    return re.sub(r"^(ERR )?@?user_script: ?\d+: | script: .*$", "", problem)
