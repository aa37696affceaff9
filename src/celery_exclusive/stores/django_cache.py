"""django-cache://alias: leases in the Redis or memcached behind a cache of a Django project.

Django's own interface of caches cannot keep a lock, so the store speaks to the server itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from celery_exclusive.errors import OptionError, did_you_mean
from celery_exclusive.stores.base import Store, make_store
from celery_exclusive.stores.redis import tls

_REDIS: Final = ("django.core.cache.backends.redis.RedisCache", "django_redis.cache.RedisCache")
_MEMCACHED: Final = tuple(
    f"django.core.cache.backends.memcached.{name}" for name in ("PyMemcacheCache", "PyLibMCCache")
)
_HAS_DATABASE: Final = re.compile(r"^rediss?://[^/?]*/\d|[?&]db=")
_BETWEEN: Final = re.compile("[;,]")
_BETWEEN_URLS: Final = re.compile(r"[;,]\s*(?=\w+://)")
"""A password may have these letters, too."""
_MEMORY: Final = "django.core.cache.backends.locmem.LocMemCache"


def open_django_cache(url: str, *, prefix: str, **times: int) -> Store:
    """Make the store of an alias in `settings.CACHES`, in a namespace of the alias's KEY_PREFIX.

    A cache in the memory of the process, as in tests, gives a store in the memory of the process.

    Parameters:
        url: `django-cache://default`.

    Raises:
        OptionError: there is no such alias, or its cache cannot keep locks.
    """
    alias = url.partition("://")[2]
    cache = _cache(alias)
    space = str(cache.get("KEY_PREFIX") or "")
    store = make_store(_url_of(alias, cache), prefix=f"{space}:{prefix}" if space else prefix, **times)
    if store.capabilities.one_process:
        store.url = f"{url} (LocMemCache)"
    return store


def redis_of(cache: Mapping[str, Any]) -> str | None:
    """Return the URL of the Redis that a cache writes to; None if it is another cache."""
    options = _options(cache)
    is_plain = str(options.get("CLIENT_CLASS", "DefaultClient")).endswith("DefaultClient")
    if cache.get("BACKEND") not in _REDIS or not is_plain:
        return None
    url = next(iter(_servers(cache, _BETWEEN_URLS)), "").replace("unix://", "redis+socket://", 1)
    given = {name: options.get(name) or options.get(name.upper()) for name in ("username", "password")}
    if not _HAS_DATABASE.search(url):
        given["db"] = options.get("db")
    given = {name: value for name, value in given.items() if value}
    if url.startswith("rediss://"):
        own = dict(parse_qsl(urlsplit(url).query))
        tls_options = tls.of_settings({**options, **(options.get("CONNECTION_POOL_KWARGS") or {})})
        given |= {name: value for name, value in tls_options.items() if name not in own}
    more = urlencode(given)
    return f"{url}{'&' if '?' in url else '?'}{more}" if more else url


def _cache(alias: str) -> Mapping[str, Any]:
    try:
        from django.conf import settings
        from django.core.exceptions import ImproperlyConfigured
    except ImportError:
        raise OptionError(
            "exclusive_store: django-cache:// needs Django: pip install 'celery-exclusive[django]'"
        ) from None
    try:
        caches: Mapping[str, Mapping[str, Any]] = settings.CACHES
    except ImproperlyConfigured as error:
        raise OptionError(f"exclusive_store: django-cache://: {error}") from error
    if alias not in caches:
        raise OptionError(
            "exclusive_store: a django-cache:// URL is an alias of settings.CACHES and nothing else, and "
            f"there are {', '.join(caches)}{did_you_mean(alias, list(caches))}"
        )
    return caches[alias]


def _url_of(alias: str, cache: Mapping[str, Any]) -> str:
    backend = str(cache.get("BACKEND", ""))
    if url := redis_of(cache):
        return url
    if backend in _MEMCACHED:
        if _options(cache).get("username"):
            raise OptionError(
                f"exclusive_store: django-cache://{alias} is a memcached with a login, which memcached:// "
                "does not support"
            )
        servers = (server.removeprefix("unix:") for server in _servers(cache, _BETWEEN))  # a socket's path
        return f"memcached://{','.join(servers)}"
    if backend == _MEMORY:
        return f"memory://django-cache-{alias}"
    raise OptionError(
        f"exclusive_store: django-cache://{alias} is a {backend.rpartition('.')[2]}, which cannot keep "
        "locks: name an alias that is a Redis or one memcached, or a database: django://default"
    )


def _servers(cache: Mapping[str, Any], between: re.Pattern[str]) -> Sequence[str]:
    location = cache.get("LOCATION") or ""
    servers = between.split(location) if isinstance(location, str) else location
    return [str(server).strip() for server in servers]


def _options(cache: Mapping[str, Any]) -> Mapping[str, Any]:
    options: Mapping[str, Any] = cache.get("OPTIONS") or {}
    return options
