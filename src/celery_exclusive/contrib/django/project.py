"""The Celery app of a Django project, and the database where its locks are."""

from __future__ import annotations

from celery import current_app

from celery_exclusive.errors import OptionError
from celery_exclusive.options.option import apps_with_locks
from celery_exclusive.services import ATTRIBUTE, Services
from celery_exclusive.stores.django import SCHEME, alias_of


def services() -> Services:
    """Return the services of the project's only app that has locks, or else of the current app.

    Raises:
        OptionError: no app has locks.
    """
    installed = list(apps_with_locks)
    app = installed[0] if len(installed) == 1 else current_app
    found: Services | None = getattr(app, ATTRIBUTE, None)
    if found is None:
        raise OptionError(
            "the project has no Celery app with locks: call celery_exclusive.install(app) in its celery.py, "
            "and import that in the __init__.py beside it"
        )
    return found


def has_locks() -> bool:
    """Whether the project has an app with locks, in a store that is configured right."""
    try:
        return bool(services().store_url)
    except OptionError:  # which the checks tell
        return False


def alias() -> str | None:
    """Return the alias of the database that keeps the locks. None: no database of the project does."""
    try:
        url = services().store_url
        return alias_of(url) if url.startswith(SCHEME) else None
    except OptionError:  # which the checks tell
        return None
