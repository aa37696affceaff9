"""Chooses the store of an app: the configured one, or else one that the app uses anyway."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from celery_exclusive.brokers import broker_urls, data_folder, family, is_on_this_machine, scheme
from celery_exclusive.errors import OptionError
from celery_exclusive.stores.base import has_driver, knows
from celery_exclusive.stores.django_cache import redis_of
from celery_exclusive.stores.redis import tls

DJANGO_CACHE: Final = "Django's default cache"
SHARED_ORIGINS: Final = ("exclusive_store", "broker")
"""The places where all processes of an app find the same store. Other places may be unknown to some."""
_TLS_OF: Final = {"result backend": "redis_backend_use_ssl", "broker": "broker_use_ssl"}
_OF_SQLALCHEMY: Final = re.compile(r"^(db|sqla|sqlalchemy)\+(?=(postgresql|mysql|mariadb)\b)")
"""The beginnings of the URLs of result backends and brokers in a database."""
_OF_SQLITE: Final = re.compile(r"^(?:db|sqla|sqlalchemy)\+sqlite(?:\+\w+)?:///([^?:]+)")
"""The URL of a file in which SQLAlchemy keeps results or messages."""
_SERVERS: Final = {"postgresql": "postgresql", "postgis": "postgresql", "mysql": "mysql"}
"""Engines of Django, and the scheme whose driver their store needs."""
_OF_ENGINES: Final = {"result backend": "database_engine_options", "broker": "broker_transport_options"}
"""The settings whose `connect_args` Celery and kombu give to the driver of a database."""
_OF_SENTINELS: Final = ("master_name", "min_other_sentinels", "sentinel_kwargs")
"""Transport options that a URL of sentinels takes."""


def choose(conf: Any, named: str | None) -> tuple[str, str]:
    """Return the URL of the store and where it was found.

    First the broker, which all processes of an app share: one that only publishes may have no result backend.
    Then the result backend, Django's default cache, or its default database. Each counts if it is a Redis or,
    with its driver installed, a PostgreSQL, MariaDB or MySQL. SQLite serves one machine only: it is chosen
    beside the files of a broker, or, for a broker of one machine, beside SQLite results.

    Raises:
        OptionError: the app uses nothing that can keep locks; the message says which setting to add.
    """
    if named:
        options = ("broker_transport_options", "result_backend_transport_options")
        return _with_options(conf, named, *options), "exclusive_store"
    passed_over = []
    for origin, used in _candidates(conf):
        url = _OF_SQLALCHEMY.sub("", used)
        if knows(url) and (url == used or has_driver(url)):
            if url != used:
                _refuse_hidden_tls(conf, origin)
            transport = f"{origin.replace(' ', '_')}_transport_options"
            return _with_options(conf, url, transport, use_ssl=_TLS_OF.get(origin, "")), origin
        found = re.match(r"[\w.+ -]+(?=:|$)", used)  # also if it is no URL; never a part of a password
        name = found[0] if found else "none"
        remark = ""
        if name == "cache+memcached":
            remark = " (keeps no line: name memcached:// if no task waits for its lock)"
        elif scheme(used).startswith("db+sqlite"):
            remark = " (serves one machine, and the broker others, too)"
        elif knows(url):
            remark = f" (needs celery-exclusive[{scheme(url).partition('+')[0]}])"
        passed_over.append(f"{origin} {name}{remark}")
    raise OptionError(
        f"exclusive_store: the app has nothing that can keep locks ({', '.join(passed_over)}); "
        'add one line: app.conf.exclusive_store = "redis://localhost:6379/0", "postgresql://localhost/db", '
        'or, if all processes are on one machine, "sqlite:////var/lib/proj/locks.db"'
    )


def _candidates(conf: Any) -> Iterator[tuple[str, str]]:
    result_backend = str(conf.result_backend or "")  # as an attribute it includes the environment
    database = _django_settings("DATABASES")
    if result_backend == "django-db":
        result_backend = _results(database)
    is_sqlite = result_backend.startswith("db+sqlite")
    yield "broker", _broker(conf)
    if not is_sqlite:
        yield "result backend", tls.with_settings(result_backend, conf.get("redis_backend_use_ssl"))
    if (cache := _django_settings("CACHES")) is not None:
        yield DJANGO_CACHE, redis_of(cache) or _name(cache.get("BACKEND", ""))
        yield "Django's default database", _of_engine(database)
    if is_sqlite:
        yield "result backend", _beside(result_backend) if is_on_this_machine(conf) else result_backend


def _broker(conf: Any) -> str:
    """Return the URL of the first broker, or a store beside a broker of one machine."""
    url, *others = broker_urls(conf)
    if scheme(url) == "sentinel":
        return ";".join([url, *others])
    if family(url) == "memory":
        return "memory://"
    if family(url) == "filesystem":
        return f"sqlite:///{Path(data_folder(conf)).absolute()}/locks.db"
    if "+sqlite" in scheme(url):
        return _beside(url)
    return tls.with_settings(url, conf.get("broker_use_ssl"))


def _with_options(conf: Any, url: str, *settings: str, use_ssl: str = "") -> str:
    """Return a URL of sentinels with Celery's transport options for them and its settings of TLS."""
    if scheme(url) != "sentinel":
        return url
    given: dict[str, Any] = {}
    for setting in settings:
        given |= conf.get(setting) or {}
    options = {name: given[name] for name in _OF_SENTINELS if given.get(name)}
    if "sentinel_kwargs" in options:
        try:
            options["sentinel_kwargs"] = json.dumps(options["sentinel_kwargs"])
        except (TypeError, ValueError):
            raise OptionError(
                "exclusive_store: sentinel_kwargs is a dictionary of options of connections, with values "
                "that JSON can write"
            ) from None
    if isinstance(to_servers := conf.get(use_ssl), Mapping) and to_servers:
        options |= {"ssl_cert_reqs": "required", **tls.of_settings(to_servers)}
    own = dict(parse_qsl(re.sub("[?;]", "&", url)))
    more = urlencode({name: value for name, value in options.items() if name not in own})
    mark = "&" if "?" in url.rpartition(";")[2] else "?"
    return f"{url}{mark}{more}" if more else url


def _refuse_hidden_tls(conf: Any, origin: str) -> None:
    """Refuse a database whose options of TLS are not in its URL: the store would go without them."""
    setting = _OF_ENGINES[origin]
    hidden = [name for name in (conf.get(setting) or {}).get("connect_args") or () if name.startswith("ssl")]
    if hidden:
        raise OptionError(
            f"exclusive_store: the {origin} is a database with {', '.join(hidden)} in {setting}, which the "
            "store does not read: name it with these options in its URL, like exclusive_store = "
            '"postgresql://app@db.example/app?sslmode=verify-full"'
        )


def _beside(url: str) -> str:
    """Return a file beside the SQLite file of results or messages: writes to one file wait for each other."""
    found = _OF_SQLITE.match(url)
    return f"sqlite:///{found[1]}.locks" if found else f"{scheme(url)} in memory"


def _django_settings(name: str) -> Any:
    """Return one of Django's settings for its default alias; None: the app does not use Django."""
    django = sys.modules.get("django.conf")  # an app that uses it has imported it by now
    if not django or not (django.settings.configured or os.environ.get("DJANGO_SETTINGS_MODULE")):
        return None
    return getattr(django.settings, name).get("default", {})


def _results(database: Any) -> str:
    """Return where django-celery-results has its tables, as a URL if that can keep locks."""
    if database and _name(database.get("ENGINE", "")) == "sqlite3":
        return f"db+sqlite:///{database.get('NAME', '')}"
    return _of_engine(database) if database else "django-db"


def _of_engine(database: Any) -> str:
    """Return the URL of Django's default database, of one that needs a driver, or the name of the engine."""
    engine = _name(database.get("ENGINE", ""))
    if engine not in _SERVERS:
        return engine
    is_ready = has_driver(f"{_SERVERS[engine]}://")
    return "django://default" if is_ready else f"db+{_SERVERS[engine]}://"


def _name(path: object) -> str:
    return str(path).rpartition(".")[2]
