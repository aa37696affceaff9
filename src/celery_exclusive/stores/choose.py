"""Chooses the store of an app: the configured one, or else one that the app uses anyway."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from celery_exclusive.brokers import broker_urls, data_folder, family, scheme
from celery_exclusive.errors import OptionError
from celery_exclusive.stores.base import has_driver, knows
from celery_exclusive.stores.django_cache import redis_of

DJANGO_CACHE: Final = "Django's default cache"
_NOT_YET: Final = ("sentinel", "redis+cluster", "rediss+cluster")
_OF_SQLALCHEMY: Final = re.compile(r"^(db|sqla|sqlalchemy)\+(?=(postgresql|mysql|mariadb)\b)")
"""How the URLs of result backends and brokers in a database begin."""
_LINES: Final = (
    'app.conf.exclusive_store = "redis://localhost:6379/0", or, if all processes are on one machine, '
    '"sqlite:////var/lib/proj/locks.db"'
)


def choose(conf: Any, named: str | None) -> tuple[str, str]:
    """Return the URL of the store and where it was found.

    First a store that every worker can reach: the result backend, the broker or Django's default cache, if it
    is a Redis or, with its driver installed, a database server. SQLite serves one machine only: it is chosen
    for a broker of one machine, or SQLite results.

    Raises:
        OptionError: the app uses nothing that can keep locks; the message says which setting to add.
    """
    if named:
        if scheme(named) in _NOT_YET:
            raise OptionError(f"exclusive_store: {scheme(named)}:// is not supported yet; name {_LINES}")
        return named, "exclusive_store"
    passed_over = []
    for origin, used in _candidates(conf):
        url = _OF_SQLALCHEMY.sub("", used)
        if knows(url) and (url == used or has_driver(url)):
            return url, origin
        found = re.match(r"[\w.+ -]+(?=:|$)", used)  # also if it is no URL; never a part of a password
        name = found[0] if found else "none"
        remark = ""
        if name in _NOT_YET:
            remark = " (not supported yet)"
        elif name == "cache+memcached":
            remark = " (keeps no line: name memcached:// if no task waits for its lock)"
        elif knows(url):
            remark = f" (needs celery-exclusive[{scheme(url).partition('+')[0]}])"
        passed_over.append(f"{origin} {name}{remark}")
    raise OptionError(
        f"exclusive_store: the app has nothing that can keep locks ({', '.join(passed_over)}); "
        f"add one line: {_LINES}"
    )


def _candidates(conf: Any) -> Iterator[tuple[str, str]]:
    result_backend = str(conf.result_backend or "")  # as an attribute it includes the environment
    is_sqlite = result_backend.startswith("db+sqlite")
    if not is_sqlite:
        yield "result backend", result_backend
    yield "broker", _broker(conf)
    yield from _of_django()
    if is_sqlite:
        yield "result backend", _beside(result_backend)


def _broker(conf: Any) -> str:
    """Return the URL of the first broker, or a store beside a broker of one machine."""
    url = broker_urls(conf)[0]
    if family(url) == "memory":
        return "memory://"
    if family(url) == "filesystem":
        return f"sqlite:///{Path(data_folder(conf)).absolute()}/locks.db"
    return url


def _beside(result_backend: str) -> str:
    """Return a file beside that of an SQLite result backend: writes to one file wait for each other."""
    found = re.match(r"db\+sqlite(\+\w+)?:///([^?:]+)", result_backend)
    return f"sqlite:///{found[2]}.locks" if found else "db+sqlite in memory"


def _of_django() -> Iterator[tuple[str, str]]:
    django = sys.modules.get("django.conf")  # an app that uses it has imported it by now
    if not django or not (django.settings.configured or os.environ.get("DJANGO_SETTINGS_MODULE")):
        return
    cache = django.settings.CACHES.get("default", {})
    yield DJANGO_CACHE, redis_of(cache) or _name(str(cache.get("BACKEND", "")))
    yield "Django's default database", _name(django.settings.DATABASES.get("default", {}).get("ENGINE", ""))


def _name(path: str) -> str:
    return path.rpartition(".")[2]
