"""Checks of the data that a store reads of a key, since other programs may have written them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any, Final, get_args

from celery_exclusive.core.records import NEVER, Holder, Part, Phase
from celery_exclusive.core.room import Terms
from celery_exclusive.errors import shown

_PHASES: Final = get_args(Phase)
MOST: Final = 2**63 - 1


class Damaged(ValueError):
    """The data of a key were not written by any release of this library."""


def check_numbers(*numbers: Any) -> None:
    """Raise Damaged unless all are whole numbers that a column of a database can hold."""
    for number in numbers:
        if not isinstance(number, int) or abs(number) > MOST:
            raise Damaged(f"{shown(number)} is no whole number of 64 bits")


def check_within(least: int, number: Any, most: int) -> None:
    check_numbers(number)
    if not least <= number <= most:
        raise Damaged(f"{number} is not from {least} to {most}")


def check_type(kind: type[bytes | str], value: Any) -> None:
    if not isinstance(value, kind):
        raise Damaged(f"{shown(value)} is no {kind.__name__}")


def check_one_of(known: tuple[str, ...], value: Any) -> None:
    if value not in known:
        raise Damaged(f"{shown(value)} is none of {', '.join(known)}")


def check_holders(holders: Iterable[Holder]) -> None:
    """Raise Damaged if a lease has a field with a value that it cannot have."""
    for holder in holders:
        check_type(str, holder.id)
        check_type(str, holder.token)
        check_type(str, holder.part)
        check_one_of(_PHASES, holder.phase)
        check_numbers(holder.expiry, holder.fence)
        check_within(1, holder.cost, NEVER)


def read_terms(text: Any) -> Terms:
    """Return the terms with this text. Raises Damaged if it has none, or a number that they cannot have."""
    check_type(str, text)
    try:
        return _checked(Terms.of_text(text))
    except ValueError as error:
        raise Damaged(f"{type(error).__name__}: {error}") from error


def read_part(name: str, text: Any) -> Part:
    """Return the part with this text. Raises Damaged if it has none, or a number that it cannot have."""
    check_type(str, text)
    try:
        part = Part.of_text(name, text)
    except ValueError as error:
        raise Damaged(f"{type(error).__name__}: {error}") from error
    _checked(part.terms)
    for number in (part.waiting, part.last, part.held, part.shut, part.limit, part.due):
        check_within(0, number, NEVER)
    check_within(1, part.weight, NEVER)
    return part


def _checked(terms: Terms) -> Terms:
    override = terms.override[:3] if terms.override else ()
    rates = (number for rate in terms.rates for number in (rate.units, rate.period, *chain(*rate.log)))
    others = terms.opens_at, terms.extra, terms.reached, terms.shut, terms.part_due
    for number in (*override, *rates, *others):
        check_within(0, number, NEVER)
    return terms
