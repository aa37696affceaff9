"""The limits of a key as an operator sees them: at once, per time, and those that were set while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from celery_exclusive.core.records import NEVER, SECOND
from celery_exclusive.display import duration, printable
from celery_exclusive.options.amounts import MOST

if TYPE_CHECKING:
    from celery_exclusive.core.room import Terms
    from celery_exclusive.stores.base import Snapshot

LONG_PAUSE: Final = 3600
"""The seconds after which a pause may be forgotten."""
Closed = Literal["paused", "hold", "rate", "part"]
"""The words for what lets no task start though slots of the key may be free."""


@dataclass(frozen=True, slots=True)
class RateState:
    """A rate: `used` of `units` in the last `period` seconds. `opens_in`: if none may start now."""

    units: int
    used: int
    period: float
    opens_in: float | None = None

    @property
    def text(self) -> str:
        text = f"rate: {self.used:,} of {self.units:,} in the last {duration(self.period)}"
        return text if self.opens_in is None else f"{text}; the next may start in {self.opens_in:.1f} s"


@dataclass(frozen=True, slots=True)
class Override:
    """The limit that an operator has set, 0 for a pause. Times are seconds; `ends_in` None: without end."""

    limit: int
    age: float
    ends_in: float | None
    by: str
    reason: str

    @property
    def text(self) -> str:
        what = f"limit {self.limit:,} set" if self.limit else "paused"
        end = "" if self.ends_in is None else f", for another {duration(self.ends_in)}"
        reason = f": {printable(self.reason)}" if self.reason else ""
        return f"{what} by {printable(self.by) or 'an operator'} {duration(self.age)} ago{end}{reason}"


@dataclass(frozen=True, slots=True)
class Room:
    """The limits of a key, or of a part.

    `limit`: as its latest caller has said; None: any number. `is_known`: else the store does not know this
    limit. `opens_in`: the seconds for which a hold lets nothing start.
    """

    limit: int | None = 1
    is_known: bool = True
    override: Override | None = None
    opens_in: float | None = None
    rates: tuple[RateState, ...] = ()

    @classmethod
    def of(cls, snapshot: Snapshot) -> Room:
        is_known = bool(snapshot.holders or snapshot.all_waiting)
        return cls.of_terms(snapshot.limit, snapshot.terms, snapshot.now, is_known=is_known)

    @classmethod
    def of_terms(cls, limit: int, terms: Terms, now: int, *, is_known: bool) -> Room:
        override = None
        if terms.override:
            set_to, until, since, by, reason = terms.override
            ends_in = None if until == NEVER else (until - now) / SECOND
            override = Override(set_to, max(now - since, 0) / SECOND, ends_in, by, reason)
        rates = (
            RateState(
                rate.units,
                rate.units - rate.free,
                rate.period / SECOND,
                None if rate.free > 0 else (rate.opens(now, 1) - now) / SECOND,
            )
            for rate in terms.active
        )
        opens_in = (terms.opens_at - now) / SECOND if terms.opens_at > now else None
        return cls(None if limit >= MOST else limit, is_known, override, opens_in, tuple(rates))

    @property
    def closed_by(self) -> Closed | None:
        if self.override and not self.override.limit:
            return "paused"
        if self.opens_in is not None:
            return "hold"
        return "rate" if any(rate.opens_in is not None for rate in self.rates) else None

    @property
    def is_forgotten(self) -> bool:
        """Whether an operator has paused it for so long that this may be forgotten."""
        return self.override is not None and not self.override.limit and self.override.age >= LONG_PAUSE

    @property
    def most(self) -> int:
        """The units that may be held at once; `MOST` for any number."""
        return self.override.limit if self.override else self.limit or MOST

    @property
    def least(self) -> int:
        """The units of its smallest limit, a pause apart. A task that costs more runs alone."""
        override = self.override.limit if self.override else 0
        return min([override or self.limit or MOST, *(rate.units for rate in self.rates)])

    @property
    def hides(self) -> str:
        """Say that the code allows more than an operator; "": it does not."""
        code = self.limit or MOST
        if not (self.override and self.is_known and self.override.limit < code):
            return ""
        return "the code allows any number" if self.limit is None else f"the code allows {code:,}"

    @property
    def short(self) -> str:
        """The limits in a few characters: "4 (not 25), 480/500 per 1m00s"."""
        code = "-" if self.limit is None or not self.is_known else f"{self.limit:,}"
        words = [code]
        if self.override:
            words = [f"{self.override.limit:,}" if self.override.limit else "paused"]
            words[0] += f" (not {code})" * self.is_known
        if self.opens_in is not None:
            words.append(f"held back {duration(self.opens_in)}")
        words += [f"{rate.used:,}/{rate.units:,} per {duration(rate.period)}" for rate in self.rates]
        return ", ".join(words)

    def lines(self) -> Iterator[str]:
        yield from self.set_texts()
        yield from (rate.text for rate in self.rates)

    def set_texts(self) -> Iterator[str]:
        if self.override:
            yield self.override.text
        if self.opens_in is not None:
            yield f"held back: nothing starts for another {duration(self.opens_in)}"

    @property
    def closed_text(self) -> str:
        texts = {
            "paused": lambda: [self.override.text if self.override else ""],
            "hold": lambda: [line for line in self.lines() if line.startswith("held back")],
            "rate": lambda: [rate.text for rate in self.rates if rate.opens_in is not None],
        }
        return "; ".join(texts[self.closed_by]()) if self.closed_by else ""
