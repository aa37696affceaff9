"""The command `celery -A proj locks doctor`: what is wrong with an installation, and how to mend it."""

from __future__ import annotations

import json

import click
from celery.bin.base import CLIContext

from celery_exclusive.cli.app import app_services
from celery_exclusive.operate.doctor import examine


@click.command
@click.option("--json", "as_json", is_flag=True, help="One JSON object per finding, for programs.")
@click.option("--strict", is_flag=True, help="Warnings count as problems, for example in CI.")
@click.pass_context
def doctor(ctx: click.Context, *, as_json: bool, strict: bool) -> None:
    """Examine settings, broker, store and workers, and say how to mend what is wrong.

    It acquires and releases a lock of its own, and changes nothing else.

    Exit code: 0 if no problem was found, 1 if there is one (with --strict also a warning), 3 if the store
    does not answer.
    """
    obj: CLIContext = ctx.obj
    levels = set[str]()
    is_away = False
    for check in examine(app_services(obj, is_used=False)):
        levels.add(check.level)
        is_away |= check.is_away
        if as_json:
            record = {"name": check.name, "level": check.level, "finding": check.finding, "fix": check.fix}
            click.echo(json.dumps(record))
            continue
        click.echo(f"{check.level:8} {check.name}: {check.finding}")
        if check.fix:
            click.echo(f"{'':8} fix: {check.fix}")
    bad = {"problem", "warning"} if strict else {"problem"}
    ctx.exit(3 if is_away else int(bool(levels & bad)))
