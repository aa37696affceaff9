"""Django in the process of a test, for as long as that lasts: it can be configured once only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pymysql
from asgiref.local import Local
from django.conf import settings
from django.db import connections
from django.utils.functional import empty

ENGINES = "django.db.backends."


@contextmanager
def configured(databases: dict[str, dict[str, Any]], **others: Any) -> Iterator[None]:
    """Have these `settings.DATABASES`, and no app."""
    settings.configure(DATABASES=databases, **others)
    try:
        yield
    finally:
        connections.close_all()
        connections._connections = Local(connections.thread_critical)
        connections._settings = None
        vars(connections).pop("settings", None)
        settings._wrapped = empty


def sqlite(path: Path) -> dict[str, Any]:
    return {"ENGINE": ENGINES + "sqlite3", "NAME": path}


def postgresql(url: str, **options: Any) -> dict[str, Any]:
    return _server("postgresql", url, options)


def mysql(url: str, **options: Any) -> dict[str, Any]:
    """PyMySQL stands in for mysqlclient, which Django speaks and which has to be compiled."""
    pymysql.version_info = (2, 2, 1, "final", 0)
    pymysql.install_as_MySQLdb()
    return _server("mysql", url, options)


def _server(engine: str, url: str, options: dict[str, Any]) -> dict[str, Any]:
    """The database of a URL, as Django's settings name it."""
    at = urlsplit(url)
    return {
        "ENGINE": ENGINES + engine,
        "NAME": at.path.strip("/"),
        "USER": at.username,
        "HOST": at.hostname,
        "PORT": at.port,
        "OPTIONS": options,
    }
