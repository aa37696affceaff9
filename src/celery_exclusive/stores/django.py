"""django://alias: leases in a database of a Django project, on connections of the store's own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from celery_exclusive.errors import OptionError, did_you_mean
from celery_exclusive.stores.base import Store, factory_of, make_store
from celery_exclusive.stores.sql import sqlite_tables

if TYPE_CHECKING:
    from celery_exclusive.stores.sql.server import ServerStore
    from celery_exclusive.stores.sql.sqlite import SqliteStore

SCHEME: Final = "django://"
APP: Final = "celery_exclusive.contrib.django"
_OF_DJANGO: Final = ("context", "cursor_factory", "prepare_threshold")
"""The parameters of psycopg that adapt a connection to Django. The store leaves them out."""
_OF_PYMYSQL: Final = (
    *("user", "password", "database", "host", "port", "unix_socket", "charset", "ssl"),
    *("connect_timeout", "read_default_file", "read_default_group", "bind_address"),
)
"""The parameters that PyMySQL has, too: Django passes the parameters of mysqlclient, which has others."""


def open_django(url: str, *, prefix: str, **times: int) -> Store:
    """Make the store of an alias in `settings.DATABASES`.

    The store has connections of its own, so transactions of the caller neither delay nor undo a lock. If the
    project has our app, its migrations make the tables; else the store makes them at its first use. Another
    connection cannot see a SQLite database in memory, as tests have it: then locks are in memory, too.

    Parameters:
        url: `django://default`. For PostgreSQL it may end with `?tables_of=ROLE`, as of `PostgresStore`.

    Raises:
        OptionError: there is no such alias, or its database cannot keep locks.
    """
    alias = alias_of(url)
    vendor = vendor_of(alias)
    if url != f"{SCHEME}{alias}" and vendor != "postgresql":
        raise OptionError(
            f"exclusive_store: {url}: only tables of PostgreSQL have owners: leave out tables_of"
        )
    if vendor == "sqlite" and _connection(alias).is_in_memory_db():
        store = make_store(f"memory://django-{alias}", prefix=prefix, **times)
        store.url = f"{url} (SQLite in memory)"
        return store
    made = _make(url, vendor, prefix=prefix, **times)
    if has_app():
        database = "" if alias == "default" else f" --database={alias}"
        made.made_by = f"python manage.py migrate{database and f' celery_exclusive{database}'}"
        made.unmade_by = f"python manage.py migrate celery_exclusive zero{database}"
    return made


def alias_of(url: str) -> str:
    """Return the alias that a URL names."""
    alias = url.partition("://")[2].partition("?tables_of=")[0]
    if not alias or set(alias) & set("/?@:"):
        raise OptionError(
            "exclusive_store: a django:// URL is an alias of settings.DATABASES and nothing else: write "
            "django://default"
        )
    return alias


def vendor_of(alias: str) -> str:
    """Return the kind of database behind an alias: sqlite, postgresql or mysql.

    Raises:
        OptionError: there is no such alias, or it is another kind.
    """
    vendor = str(_connection(alias).vendor)
    if vendor not in (*_SERVERS, "sqlite"):
        raise OptionError(
            f"exclusive_store: django://{alias} is a database of the kind {vendor}, which cannot keep locks: "
            f"name an alias whose ENGINE is one of {', '.join(_SERVERS)}, sqlite"
        )
    return vendor


def has_app() -> bool:
    """Whether the project has our app, so that its migrations make the tables."""
    from django.conf import settings

    return any(str(entry).startswith(APP) for entry in settings.INSTALLED_APPS)


def definitions(alias: str) -> list[str]:
    """Return the statements that make the tables, for a migration."""
    vendor = vendor_of(alias)
    if vendor == "sqlite":  # perhaps in memory
        return sqlite_tables.statements()
    store: Any = _make(f"{SCHEME}{alias}", vendor)
    return list(store.definitions())


def _connection(alias: str) -> Any:
    """Return Django's connection object of an alias, which has the settings in force, also within a test."""
    try:
        from django.core.exceptions import ImproperlyConfigured
        from django.db import connections
    except ImportError:
        raise OptionError(
            "exclusive_store: django:// needs Django: pip install 'celery-exclusive[django]'"
        ) from None
    try:
        if alias not in connections:
            known = ", ".join(connections)
            raise OptionError(
                f"exclusive_store: settings.DATABASES has no alias {alias!r} (there are {known})"
                f"{did_you_mean(alias, list(connections))}"
            )
        return connections[alias]
    except ImproperlyConfigured as error:  # no settings, or a backend or driver that cannot be imported
        raise OptionError(f"exclusive_store: django://{alias}: {error}") from error


def _parameters(alias: str) -> dict[str, Any]:
    """Return the driver's parameters. Each connection asks anew: a password may be valid for minutes only."""
    from django.core.exceptions import ImproperlyConfigured

    try:
        return dict(_connection(alias).get_connection_params())
    except ImproperlyConfigured as error:
        raise OptionError(f"exclusive_store: django://{alias}: {error}") from error


def _make(url: str, vendor: str, **options: Any) -> ServerStore | SqliteStore:
    alias = alias_of(url)
    if vendor in _SERVERS:
        make = cast("type[ServerStore]", factory_of(f"{vendor}://"))
        server = make(url, parameters=partial(_SERVERS[vendor], alias), **options)
        # Django's test runner cannot drop a database that has connections.
        server.keeps_connections = not hasattr(sys.modules.get("django.core.mail"), "outbox")
        return server
    parameters = _parameters(alias)
    timeout = f"?timeout={parameters['timeout']}" if "timeout" in parameters else ""
    store = cast("SqliteStore", make_store(f"sqlite:///{parameters['database']}{timeout}", **options))
    store.url = url
    store.in_the_way = (
        "a transaction of the caller that has written to this database keeps locks waiting: give them an "
        f"alias of their own; else {store.in_the_way}"
    )
    return store


def _for_psycopg(alias: str) -> dict[str, Any]:
    parameters = {name: value for name, value in _parameters(alias).items() if name not in _OF_DJANGO}
    if role := _connection(alias).settings_dict["OPTIONS"].get("assume_role"):
        parameters["options"] = f"{parameters.get('options', '')} -c role={role}".strip()
    return parameters


def _for_pymysql(alias: str) -> dict[str, Any]:
    given = _parameters(alias)
    parameters = {name: value for name, value in given.items() if name in _OF_PYMYSQL}
    mode = str(given.get("ssl_mode", "PREFERRED")).upper()
    if mode == "REQUIRED":  # else PyMySQL goes on without TLS if the server has none
        parameters.setdefault("ssl", {"check_hostname": False})
    elif mode not in ("PREFERRED", "DISABLED") and "ca" not in parameters.get("ssl", {}):
        raise OptionError(f"exclusive_store: django://{alias}: ssl_mode {mode} needs the file ssl['ca']")
    elif mode == "VERIFY_CA":
        parameters["ssl"] = {**parameters["ssl"], "check_hostname": False}
    return parameters


_SERVERS: Final[dict[str, Callable[[str], dict[str, Any]]]] = {
    "mysql": _for_pymysql,
    "postgresql": _for_psycopg,
}
"""The kinds of databases of servers, and the functions that return the parameters of their drivers."""
