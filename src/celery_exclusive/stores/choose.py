"""Which store an app uses: the one it names, else one it has anyway."""

from __future__ import annotations

from typing import Any

from celery_exclusive.errors import OptionError
from celery_exclusive.stores.base import knows


def choose(conf: Any, named: str | None) -> tuple[str, str]:
    """Return the URL of the store and where it was found.

    Raises:
        OptionError: nothing that the app uses can keep leases.
    """
    if named:
        return named, "exclusive_store"
    # As attributes, which know what the environment and the command line say.
    candidates = {"result backend": conf.result_backend, "broker": conf.broker_write_url}
    urls = {origin: _first(candidate) for origin, candidate in candidates.items() if candidate}
    for origin, url in urls.items():
        if "://" in url and knows(url) and not url.startswith("memory:"):
            return url, origin
    found = ", ".join(f"{origin} {url.partition(':')[0]}" for origin, url in urls.items())
    raise OptionError(
        f"exclusive_store: the app has nothing that can keep leases (it has {found or 'no URL'}); "
        'add one line: app.conf.exclusive_store = "redis://localhost:6379/0"'
    )


def _first(url: Any) -> str:
    """Celery takes several URLs of a broker, as a list or with semicolons."""
    return (url if isinstance(url, str) else str(next(iter(url), ""))).split(";")[0]
