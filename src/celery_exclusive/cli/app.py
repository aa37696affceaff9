"""The app of a command, with its services."""

from __future__ import annotations

import os
import re
import sys
from itertools import pairwise
from shlex import quote
from typing import Any

import click
from celery import Celery
from celery.bin.base import CLIContext

from celery_exclusive.display import printable
from celery_exclusive.errors import ExclusiveError
from celery_exclusive.installer import install
from celery_exclusive.operate.patience import reach
from celery_exclusive.services import ATTRIBUTE, Services


def as_typed(command: str) -> str:
    """Return a command for a shell with the app that the operator has named in place of `proj`."""
    words = sys.argv[1:]
    named = [value for option, value in pairwise(words) if option in ("-A", "--app")]
    named += [word.removeprefix("--app=") for word in words if word.startswith("--app=")]
    app = next(iter(named), os.environ.get("APP"))
    return re.sub("^celery -A proj ", lambda _: f"celery -A {quote(app)} ", command) if app else command


def app_of_url(url: str, prefix: str) -> Celery:
    """Return an app without tasks and broker for a store, for when the project's own cannot be imported."""
    app = Celery("locks", broker="memory://localhost/", set_as_current=False)
    app.conf.update(exclusive_store=url, exclusive_prefix=prefix)
    services: Services = getattr(install(app), ATTRIBUTE)
    if make_nothing := getattr(services.store, "make_nothing", None):
        make_nothing()
    return app


def app_services(obj: CLIContext, *, is_used: bool = True) -> Services:
    """Return the services of the app, with all its tasks imported; print which store it uses."""
    app: Any = obj.app
    try:
        app.loader.import_default_modules()
    except ExclusiveError:
        raise
    except Exception as error:  # noqa: BLE001 - when things are broken, an operator needs this most
        why = printable(f"{type(error).__name__}: {error}")
        click.echo(f"Warning: not all tasks could be imported: {why}", err=True)
    app.finalize()
    services: Services | None = getattr(app, ATTRIBUTE, None)
    if services is None:
        raise click.ClickException(
            f"app {app.main!r} has no locks: use the app that celery_exclusive.install(app) was called for, "
            "as in `celery -A proj locks ls`"
        )
    store = services.store
    url = printable(store.url)
    if not obj.quiet:  # type: ignore[attr-defined] # the stubs do not know it
        prefix = services.settings.exclusive_prefix
        click.echo(f"locks in {url} ({services.origin}), exclusive_prefix {prefix}", err=True)
    if is_used:
        reach(services)  # a node of a Redis Cluster would list no keys, and not say why
    if store.capabilities.one_process:
        click.echo(f"Warning: {url} is the memory of one process, and this is another process", err=True)
    return services
