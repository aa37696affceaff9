"""The command `celery -A proj locks`, in a small module, since Celery imports it for each of its commands."""

from __future__ import annotations

from typing import Any

import click
from celery.bin.base import handle_preload_options

from celery_exclusive.errors import ExclusiveError, is_away


class _Unreachable(click.ClickException):
    exit_code = 3


class _Group(click.Group):
    """A group that imports its commands when they are used.

    It prints an error in one line instead of a traceback, and exits with 1, or with 3 if the store does not
    answer.
    """

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        from celery_exclusive.cli.commands import commands
        from celery_exclusive.cli.doctor import doctor
        from celery_exclusive.cli.drop import drop, put
        from celery_exclusive.cli.looking import ls, show, why
        from celery_exclusive.cli.metrics import metrics
        from celery_exclusive.cli.web import web

        for command in (doctor, drop, ls, put, show, why, metrics, web):
            commands.add_command(command)
        self.commands = commands.commands
        return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ExclusiveError as error:
            kind = _Unreachable if is_away(error) else click.ClickException
            raise kind(str(error)) from error


# `**_`: before Celery 5.7 the options that an app adds to all commands arrive here too.
@click.group(cls=_Group)
@click.pass_context
@handle_preload_options
def locks(ctx: click.Context, **_: object) -> None:
    """Say why a task does not run, list locks, release them, drop waiting tasks and put them back.

    It also makes the tables of a database.

    celery_exclusive.install must have been called for the app, whose settings name the store.
    """
