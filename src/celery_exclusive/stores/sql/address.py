"""The URL of a database server, read as SQLAlchemy reads it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import unquote

from sqlalchemy import URL, exc, make_url

from celery_exclusive.errors import OptionError

_OWNERS: Final = re.compile(r"(?<=[?&])tables_of=([^&]*)&?")


def without_owners(url: str) -> tuple[str, list[str]]:
    """Return the URL without its option `tables_of`, and the roles that this names."""
    found = _OWNERS.search(url)
    return _OWNERS.sub("", url).rstrip("?&") if found else url, unquote(found[1]).split(",") if found else []


def read(url: str, driver: str) -> tuple[str, Callable[[], dict[str, Any]]]:
    """Return the URL without password and options, and a function that returns the driver's arguments.

    Parameters:
        driver: the dialect and driver of SQLAlchemy that make the arguments, whichever the URL names.

    Raises:
        OptionError: the URL is malformed.
    """
    kind = url.partition(":")[0].partition("+")[0]
    try:
        given = make_url(url).set(drivername=driver)
        if set(url.partition("://")[2].rpartition("@")[0]) & set("/?#@"):
            raise ValueError("a part of the password would be read as another part of the URL, and shown")
        options = dict(given.get_dialect()().create_connect_args(given)[1])
    except (exc.ArgumentError, ValueError):  # its text would show the password
        several = ", several hosts as ?host=one:5432&host=two:5432" if driver.startswith("postgresql") else ""
        raise OptionError(
            f"exclusive_store: cannot understand this {kind}:// URL: percent-encode what is special "
            f"in its password ('/' is %2F, '@' is %40), and give the port as a number{several}"
        ) from None
    hosts = {"host": given.query["host"]} if "host" in given.query else {}
    shown = URL.create(kind, given.username, None, given.host, given.port, given.database, hosts)
    place, mark, query = shown.render_as_string().partition("?")
    return place + mark + query.replace("%3A", ":").replace("%2F", "/"), lambda: options
