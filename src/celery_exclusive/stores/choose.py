"""Which store an app uses: the one it names, else one it has anyway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery_exclusive.errors import OptionError
from celery_exclusive.stores.base import knows


def choose(conf: Mapping[str, Any], named: str | None) -> tuple[str, str]:
    """Return the URL of the store and where it was found.

    Raises:
        OptionError: nothing that the app uses can keep leases.
    """
    if named:
        return named, "exclusive_store"
    candidates = [("result backend", conf.get("result_backend")), ("broker", conf.get("broker_url"))]
    for origin, candidate in candidates:
        urls = [candidate] if isinstance(candidate, str) else list(candidate or ())
        for url in urls[:1]:
            first = str(url).split(";")[0]
            if "://" in first and knows(first) and not first.startswith("memory:"):
                return first, origin
    found = ", ".join(
        f"{origin} {str(url).partition('://')[0] or 'none'}" for origin, url in candidates if url
    )
    raise OptionError(
        f"exclusive_store: the app has nothing that can keep leases (it has {found or 'no URL'}); "
        'add one line: app.conf.exclusive_store = "redis://localhost:6379/0"'
    )
