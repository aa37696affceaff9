"""The command `celery -A proj locks`, in a small module, since Celery imports it for each of its commands."""

from __future__ import annotations

import json
from typing import Any, Final

import click
from celery.bin.base import handle_preload_options

from celery_exclusive.errors import ExclusiveError, is_away

_AS_JSON: Final = "celery_exclusive.as_json"
"""The name in click's context of whether the errors of a command are objects of JSON, as its answer is."""


class _Failure(click.ClickException):
    """An error with its exit code: a line or, for programs, a JSON object on stdout."""

    def __init__(self, message: str, exit_code: int, *, as_json: bool) -> None:
        super().__init__(message)
        self.exit_code, self._as_json = exit_code, as_json  # type: ignore[misc] # a ClassVar in the stubs

    def show(self, file: Any = None) -> None:
        if self._as_json:
            click.echo(json.dumps({"error": self.message, "exit_code": self.exit_code}))
        else:
            super().show(file)


class _Group(click.Group):
    """Imports its commands when they are used, and prints an error in one line, with --json as an object."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = args[: args.index("--")] if "--" in args else args
        ctx.meta[_AS_JSON] = "--json" in words
        return super().parse_args(ctx, args)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        from celery_exclusive.cli.commands import commands
        from celery_exclusive.cli.doctor import doctor
        from celery_exclusive.cli.drop import drop, put
        from celery_exclusive.cli.limits import hold, limit, pause, resume
        from celery_exclusive.cli.looking import ls, show, why
        from celery_exclusive.cli.metrics import metrics
        from celery_exclusive.cli.web import web

        for command in (doctor, drop, hold, limit, ls, pause, put, resume, show, why, metrics, web):
            commands.add_command(command)
        self.commands = commands.commands
        return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        from celery_exclusive.operate.patience import NoAnswer

        try:
            return super().invoke(ctx)
        except ExclusiveError as error:
            text, code = str(error), 3 if is_away(error) or isinstance(error, NoAnswer) else 1
            cause: Exception = error
        except click.ClickException as error:
            text, code, cause = error.format_message(), error.exit_code, error
            if not ctx.meta[_AS_JSON]:
                raise
        raise _Failure(text, code, as_json=ctx.meta[_AS_JSON]) from cause


# `**_`: before Celery 5.7 the options that an app adds to all commands arrive here too.
@click.group(cls=_Group)
@click.option("--url", default="", help="The store, if the app cannot be imported: for ls and show.")
@click.option("--prefix", default="", help="With --url: exclusive_prefix of the app, by default cx.")
@click.pass_context
@handle_preload_options
def locks(ctx: click.Context, *, url: str, prefix: str, **_: object) -> None:
    """Say why a task does not run, list locks, release, limit and pause them, drop waiting tasks and put them
    back.

    It also makes the tables of a database.

    celery_exclusive.install must have been called for the app, whose settings name the store.
    """
    if prefix and not url:
        raise click.UsageError("--prefix goes with --url: the app's own settings name its exclusive_prefix")
    if url:
        from celery_exclusive.cli.app import app_of_url

        if ctx.invoked_subcommand not in ("ls", "show"):
            raise click.UsageError(
                f"{ctx.invoked_subcommand} needs the app, with its tasks, broker and results: --url is for "
                "ls and show"
            )
        ctx.obj.app = app = app_of_url(url, prefix or "cx")
        ctx.call_on_close(app.close)  # else Celery gives it each shared task of its process
