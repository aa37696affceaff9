"""The system checks for the locks of a project, which `manage.py check` runs.

`install` registers them, too, since one of them is whether the project has our app.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from django.conf import settings
from django.core import checks
from django.db import DatabaseError, connections, router
from django.db.migrations.recorder import MigrationRecorder

from celery_exclusive.contrib.django.project import alias, services
from celery_exclusive.errors import ExclusiveError, OptionError
from celery_exclusive.stores.base import open_store
from celery_exclusive.stores.django import APP, SCHEME, alias_of, has_app, vendor_of
from celery_exclusive.stores.sql.tables import NAMES

LABEL = "celery_exclusive"


@checks.register(LABEL)
def check_settings(**_: object) -> list[Any]:
    """Check the settings, as far as that needs no connection."""
    try:
        url = services().store_url
    except OptionError as error:
        return [checks.Error(str(error), id=f"{LABEL}.E001")]
    found = list(_of_alias(url) if url.startswith(SCHEME) else _elsewhere(url))
    if has_app() and not _has_jinja():
        said = "The page of locks in the admin needs Jinja2, which is not installed."
        hint = "Run `pip install 'celery-exclusive[django]'`."
        found.append(checks.Warning(said, hint=hint, id=f"{LABEL}.W012"))
    return found


@checks.register(LABEL, checks.Tags.database)
def check_database(databases: Any = None, **_: object) -> list[Any]:
    """Check that the store can do its work in its database: `manage.py check --database default`."""
    database = alias()
    if not has_app() or database not in (databases or ()):
        return []
    if any(message.level >= checks.ERROR for message in check_settings()):
        return []
    return list(_in_database(str(database)))


def _has_jinja() -> bool:
    try:
        import jinja2  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True


def _elsewhere(url: str) -> Iterator[Any]:
    try:
        open_store(url)
    except OptionError as error:
        yield checks.Error(str(error), id=f"{LABEL}.E002")
        return
    if has_app():
        yield checks.Info(
            "The locks are in no database of this project, so its migrations make no tables for them.",
            hint="To have them in one, set CELERY_EXCLUSIVE_STORE to django://default, for example.",
            id=f"{LABEL}.I008",
        )


def _of_alias(url: str) -> Iterator[Any]:
    try:
        open_store(url)
    except OptionError as error:
        is_known = url.removeprefix(SCHEME) in settings.DATABASES
        yield checks.Error(str(error), id=f"{LABEL}.E004" if is_known else f"{LABEL}.E003")
        return
    database = alias_of(url)
    if not has_app():
        yield checks.Warning(
            f"The locks are in {url}, and {APP} is not in INSTALLED_APPS.",
            hint="Add it, so that `manage.py migrate` makes the tables, and the admin shows locks. Without "
            "it the first process that needs the tables makes them.",
            id=f"{LABEL}.W006",
        )
    elif not router.allow_migrate(database, LABEL):
        yield checks.Error(
            f"A router forbids to migrate {LABEL} in {database!r}, where the locks are.",
            hint=f"Let allow_migrate({database!r}, {LABEL!r}) of DATABASE_ROUTERS return True.",
            id=f"{LABEL}.E005",
        )
    if database == "default" and vendor_of(database) == "sqlite":
        yield checks.Warning(
            f"The locks are in the SQLite file of {url}, where the project writes, too.",
            hint="A task with unique= that is published in a transaction which has written waits for that "
            "transaction, and fails. Give locks an alias of their own, with a file of its own.",
            id=f"{LABEL}.W007",
        )


def _in_database(database: str) -> Iterator[Any]:
    found = services()
    try:
        with closing(open_store(found.store_url, prefix=found.settings.exclusive_prefix)) as store:
            for text in store.check():
                yield checks.Warning(text, id=f"{LABEL}.W011")
    except ExclusiveError as error:
        if command := _migration(database):
            # As an error it would keep `migrate` from making them.
            said = f"The tables for locks are not in {database!r}."
            yield checks.Warning(said, hint=f"Run {command}.", id=f"{LABEL}.W009")
        else:
            yield checks.Error(str(error), id=f"{LABEL}.E010")


def _migration(database: str) -> str:
    """Return the command that makes the tables if they are not there."""
    connection = connections[database]
    try:
        if set(NAMES) & set(connection.introspection.table_names()):
            return ""
        is_recorded = (LABEL, "0001_tables") in MigrationRecorder(connection).applied_migrations()
    except DatabaseError:
        return ""
    command = f"`manage.py migrate {LABEL} --database={database}`"
    if is_recorded:  # when the locks were elsewhere
        command = f"`manage.py migrate {LABEL} zero --database={database}` and then {command}"
    return command
