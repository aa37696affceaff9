"""Rates as users write them: "500/m", "1/6s", or several."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from celery_exclusive.core.records import SECOND
from celery_exclusive.core.room import Rates
from celery_exclusive.options.amounts import UNITS

Rate = str | Sequence[str] | None
MOST_RATES: Final = 3
_MOST_UNITS: Final = 1_000_000
_LONGEST: Final = 31 * 86400
_FORM: Final = re.compile(r"(\d{1,7})/(\d{1,7})?([smhd])")
FORM: Final = (
    f"a number of starts, from 1 to {_MOST_UNITS:,}, in a time of up to 31 days, such as '10/s', '500/m', "
    f"'1/6s' or '10000/d', or up to {MOST_RATES} of them with different times"
)


@lru_cache(maxsize=1024)
def _read(text: str) -> tuple[int, int]:
    form = _FORM.fullmatch(text)
    units, period = (int(form[1]), int(form[2] or 1) * UNITS[form[3]]) if form else (0, 0)
    if not (1 <= units <= _MOST_UNITS and 1 <= period <= _LONGEST):
        raise ValueError(text)
    return units, period * SECOND


def read(rate: Rate) -> Rates:
    """Return the units and the period, in microseconds, of each rate. Raises ValueError."""
    if rate is None:
        return ()
    texts = (rate,) if isinstance(rate, str) else rate
    is_list = isinstance(texts, (tuple, list)) and all(isinstance(text, str) for text in texts)
    if not (is_list and 1 <= len(texts) <= MOST_RATES):
        raise ValueError(rate)
    rates = tuple(map(_read, texts))
    if len({period for _, period in rates}) < len(rates):
        raise ValueError(rate)
    return rates
