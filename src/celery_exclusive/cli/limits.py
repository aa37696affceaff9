"""The commands of `celery -A proj locks` that change what a key lets start: limit, pause, resume, hold."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import click
from celery.bin.base import CLIContext

from celery_exclusive.cli.app import app_services
from celery_exclusive.cli.commands import farewell
from celery_exclusive.cli.listing import state_lines
from celery_exclusive.errors import OptionError
from celery_exclusive.operate import limiting
from celery_exclusive.operate.states import key_state, part_state
from celery_exclusive.options.key_text import fitted
from celery_exclusive.services import Services


class Time(click.ParamType):  # type: ignore[type-arg] # generic since click 8.3
    """A time as people write it: 90, 30s, 5m, 2h, 1d."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return limiting.time_of(value) if isinstance(value, str) else value
        except OptionError as error:
            self.fail(str(error), param, ctx)


class _Limit(click.ParamType):  # type: ignore[type-arg] # generic since click 8.3
    """A count, or `reset` for the limit of the code."""

    name = "N|reset"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if value == "reset":
            return -1
        try:
            return limiting.limit_of(value)
        except OptionError as error:
            self.fail(f"{error}, and not `reset`. For 0: locks pause", param, ctx)


class _Part(click.ParamType):  # type: ignore[type-arg] # generic since click 8.3
    """The name of a part: an empty one, as of a variable that is not set, must not mean the whole key."""

    name = "PART"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value) or self.fail("it is empty, and names no part", param, ctx)


_PART = click.option(
    "--part",
    type=_Part(),
    callback=lambda *of: of[-1] or "",
    help="Only this part of the key, as per= makes it, such as a tenant.",
)
_FOR = click.option("--for", "lasts", type=Time(), help="Until this time is over, such as 30m or 2h.")
_REASON = click.option(
    "--reason", "--why", "reason", default="", help="Why: for the log, and for `locks why`."
)


@click.command
@click.argument("key")
@click.argument("number", type=_Limit(), metavar="N|reset")
@_PART
@_FOR
@_REASON
@click.pass_obj
def limit(obj: CLIContext, /, *, key: str, number: int, part: str, lasts: float | None, reason: str) -> None:
    """Let N tasks of KEY run at once, in all workers, from now on; `reset` lets the limit of the code count.

    KEY is a key as `locks ls` lists it, the name of a task, or the string of a key= or of a lock(), also if
    no task holds it now. It wins over limit= until `reset`, or until the time of --for is over. What runs,
    runs on: with 25 runs and a limit of 4, 22 must end before the next one starts.

    It is logged as a WARNING, and told to monitors as the event lock-limited, with the operator and the
    reason.
    """
    services, key = _meant(obj, key)
    if number < 0:
        found = limiting.set_limit(services, key, None, part=part, reason=reason)
        _show(services, key, part, "" if found else "the limit of the code counted already")
    else:
        limiting.set_limit(services, key, number, part=part, lasts=lasts, reason=reason)
        _show(services, key, part)


@click.command
@click.argument("key")
@_PART
@_FOR
@_REASON
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def pause(obj: CLIContext, /, *, key: str, part: str, lasts: float | None, reason: str, yes: bool) -> None:
    """Let no task of KEY start, in any worker, until `locks resume`, or until the time of --for is over.

    What runs, runs on. Calls wait in line, or are skipped or refused as their on_conflict= says. What gives
    up or expires meanwhile does so: this says how many of the tasks in line will, within two hours without
    --for, and asks first at a terminal.
    """
    services, key = _meant(obj, key)
    if ending := limiting.ending(services, key, lasts, part):
        click.echo(ending)
        if not yes and sys.stdin.isatty():
            click.confirm("pause it all the same?", abort=True)
    limiting.set_limit(services, key, 0, part=part, lasts=lasts, reason=reason)
    _show(services, key, part)


@click.command
@click.argument("key")
@_PART
@_REASON
@click.pass_obj
def resume(obj: CLIContext, key: str, part: str, reason: str) -> None:
    """End the pause of KEY, a limit that was set, and a hold; of its parts only the one of --part."""
    services, key = _meant(obj, key)
    was_limited = limiting.set_limit(services, key, None, part=part, reason=reason)
    was_held = limiting.hold(services, key, 0, part=part, reason=reason)
    _show(services, key, part, "" if was_limited or was_held else "it was neither paused nor held back")


@click.command
@click.argument("key")
@click.argument("time", type=Time())
@_PART
@_REASON
@click.pass_obj
def hold(obj: CLIContext, key: str, time: float, part: str, reason: str) -> None:
    """Let no task of KEY start for TIME, such as 30s: as a body does with lease.hold().

    An earlier hold that ends later stays. `locks resume` ends it.
    """
    services, key = _meant(obj, key)
    limiting.hold(services, key, time, part=part, reason=reason)
    _show(services, key, part)


def _meant(obj: CLIContext, text: str) -> tuple[Services, str]:
    services = app_services(obj)
    return services, limiting.key_to_limit(services, text)


def _show(services: Services, key: str, part: str, more: str = "") -> None:
    state = key_state(services, key)
    if part:
        state = replace(state, parts=(part_state(services, state, fitted(part)),), other_parts=0)
    for line in (*state_lines(state), *([f"  {more}"] if more else [])):
        click.echo(line)
    farewell(services)
