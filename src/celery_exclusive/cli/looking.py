"""The commands of `celery -A proj locks` that look and change nothing: `ls`, `show` and `why`."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Collection, Iterator
from heapq import nlargest
from itertools import chain, islice
from typing import Any

import click
from celery.bin.base import CLIContext

from celery_exclusive.cli.app import app_services, as_typed
from celery_exclusive.cli.listing import part_lines, place_line, state_lines, table
from celery_exclusive.cli.records import record
from celery_exclusive.errors import StoreUnavailable, UnreadableKey, did_you_mean
from celery_exclusive.operate.answers import Answer, of_outage
from celery_exclusive.operate.finding import find_key, keys_that_begin
from celery_exclusive.operate.states import KeyState, key_state, key_states, keys_of, whole_line_of
from celery_exclusive.operate.why import why as answer_to
from celery_exclusive.operate.why import why_words
from celery_exclusive.services import Services

_AS_JSON = click.option(
    "--json", "as_json", is_flag=True, help="One JSON object per line, for programs. Times are seconds."
)
_PAUSE = 2.0
"""Seconds between two looks of `ls --watch`."""
_ORDERS = {
    "waiting": lambda state: state.all_waiting,
    "age": lambda state: max(state.held or 0, state.oldest_wait or 0),
}


@click.command
@click.argument("prefix", default="")
@click.option("--task", default="", help="Only the keys of this task, and those that its key= makes.")
@click.option("--waiting", "only_waiting", is_flag=True, help="Only keys that tasks wait for.")
@click.option(
    "--sort",
    type=click.Choice(list(_ORDERS)),
    help="The most waiting tasks first, or the longest hold or wait. Without it keys are in order.",
)
@click.option("--top", type=click.IntRange(1), help="Only so many keys.")
@click.option("--watch", is_flag=True, help=f"Look again every {_PAUSE:g} s, until Ctrl-C.")
@_AS_JSON
@click.pass_obj
def ls(obj: CLIContext, /, prefix: str, task: str, *, watch: bool, as_json: bool, **chosen: Any) -> None:
    """List the keys that have a holder or waiting tasks.

    PREFIX lists only the keys that begin with it: a task's name, a string given to key= or lock(), or a key
    as it is listed.

    \b
    KEY      the key, for the other commands: x: and a task, x= and a string that tasks share; u: and u= if it
             is a unique key, d: and d= if it is a window of calls
    ARGS     the arguments that make the key, if the store has a message of it
    STATE    running
             dead: the lease of its run has expired; a worker that lives recovers it
             queued: the key of a task, or of a retry that keeps its lock, that has not begun, or
                 whose message is lost
             period: a unique key that expires by the clock alone
             waiting: no holder, the lock is offered to the first in line, or a window is open
             aside: no worker accepts the waiting tasks; is there a worker for their queue?
             set: an operator has set its limit or paused it, or it is held back
             damaged: its data in the store cannot be read; `locks release --force` deletes them
    HOLDER   the id of the task that holds the lock; one row for each holder
    WORKER   the worker that runs it; - for a lock(), and for a task that no worker runs
    HELD     for how long the holder has held it
    WAITING  how many tasks wait for the key, in its first row, and how many of them for room in their part
             of it (per=)
    OLDEST   for how long the first of them has waited
    LIMIT    how many holders the key may have at once, "-" for any number; the limit or pause that an
             operator has set; and of each rate how many have started

    Of one key it lists the parts, the ones with the most waiting tasks.
    """
    if watch and as_json:
        raise click.UsageError("--watch redraws a table: leave out --json, or run the command again")
    services = app_services(obj)
    if watch:
        _watch(services, prefix, task, chosen)
        return
    keys = _keys(services, prefix, task)
    if not keys:
        click.echo(_none(services, prefix, task), err=True)
    found = _chosen(services, keys, **chosen)
    first = list(islice(found, 2))
    found = chain(first, found)
    for line in (json.dumps(record(state)) for state in found) if as_json else table(found):
        click.echo(line)
    if len(first) == 1 and not as_json:
        for line in part_lines(first[0]):
            click.echo(line)


@click.command
@click.argument("key")
@click.option("--limit", type=click.IntRange(0), help="Only so many of the waiting tasks.")
@_AS_JSON
@click.pass_obj
def show(obj: CLIContext, key: str, *, limit: int | None, as_json: bool) -> None:
    """Show the holders of KEY, and all tasks that wait for it, in line and then aside.

    KEY is a key as `locks ls` lists it, the name of a task, or the string of a key= or of a lock(). Of a task
    in line it says for how long it has waited, when its window of newer calls closes, and when it gives up or
    expires.
    """
    services = app_services(obj)
    state = key_state(services, find_key(services.store, key))
    if state.problem:
        raise UnreadableKey(state.key, state.problem, services.store.url)
    waiting = islice(whole_line_of(services, state.key) if state.all_waiting else (), limit)
    if as_json:
        click.echo(json.dumps({**record(state), "line": [record(task) for task in waiting]}))
        return
    for line in state_lines(state):
        click.echo(line)
    shown = 0
    for task in waiting:
        shown += 1
        click.echo(f"  {place_line(task)}")
    if limit is not None and state.all_waiting > shown:
        click.echo(f"  and {state.all_waiting - shown:,} more wait")


@click.command
@click.argument("subject", metavar="ID | KEY | TASK")
@click.argument("args", nargs=-1)
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header that makes keys.")
@_AS_JSON
@click.pass_context
def why(
    ctx: click.Context, subject: str, args: tuple[str, ...], headers: tuple[str, ...], *, as_json: bool
) -> None:
    """Say why a task does not run, or why a key does not go on, and the next step.

    \b
    celery -A proj locks why 5d1f09aa-...                   the id of a task
    celery -A proj locks why x:feeds.import_feed:8c24ec...  a key, as the other commands take it
    celery -A proj locks why feeds.import_feed https://planet.example/rss full=true
                                                            a task and the arguments of a call

    Each of ARGS is a value of JSON, or else a string; NAME=VALUE gives an argument its name.

    It waits for store, result backend and broker for 5 s each, and names the one that does not answer.

    Exit code: 0 if there is nothing to do; 1 if a person should look: no worker accepts the task or consumes
    its queue, the worker of a holder has died, or the task is not known; 3 if the store does not answer, or
    the result backend about a task that the store does not know.
    """
    answer = _answer(ctx.obj, subject, args, headers)
    if as_json:
        click.echo(json.dumps(record(answer)))
    else:
        click.echo(answer.sentence)
        if answer.next_step:
            click.echo(f"next: {as_typed(answer.next_step)}")
    ctx.exit(3 if answer.reason in ("store_down", "backend_down") else int(answer.is_trouble))


def _answer(obj: CLIContext, subject: str, args: tuple[str, ...], headers: tuple[str, ...]) -> Answer:
    try:
        services = app_services(obj)
    except StoreUnavailable as error:
        return of_outage(error)
    if not (args or headers):
        return answer_to(services, subject)
    pairs = {name: value for name, _, value in (word.partition("=") for word in headers)}
    try:
        return why_words(services, subject, args, pairs or None)
    except TypeError as error:
        raise click.UsageError(str(error)) from error


def _keys(services: Services, prefix: str, task: str) -> list[str]:
    keys = keys_that_begin(services.store, prefix)
    return keys_of(services, task, keys) if task else keys


def _none(services: Services, prefix: str, task: str) -> str:
    if callable(getattr(services.exclusive(services.app.tasks.get(task)), "key", None)):
        return f"the keys of task {task!r} are strings that a function makes: list them by their beginning"
    if task:
        return f"no lock of task {task!r}{did_you_mean(task, set(services.app.tasks) - {task})}"
    return f"no key of a lock begins with {prefix!r}" if prefix else "no locks"


def _chosen(
    services: Services, keys: Collection[str], *, sort: str | None, top: int | None, only_waiting: bool
) -> Iterator[KeyState]:
    """Yield the states of these keys that are to be listed, without those that are free by now.

    The store knows the lengths of lines without the state of each key.
    """
    if only_waiting or (sort == "waiting" and top):
        lengths = {it.key: it.all_waiting for it in services.store.lines() if it.all_waiting}
        waited_for = [key for key in keys if key in lengths]
        if sort == "waiting" and top and len(waited_for) >= top:
            keys = nlargest(top, waited_for, key=lengths.__getitem__)
        elif only_waiting:
            keys = waited_for
    busy = (state for state in key_states(services, keys) if state.state != "free")
    found = (state for state in busy if state.all_waiting) if only_waiting else busy
    if sort:
        return iter(nlargest(top or len(keys), found, key=_ORDERS[sort]))
    return islice(found, top)


def _watch(services: Services, prefix: str, task: str, chosen: dict[str, Any]) -> None:
    """Print the table again and again: on a terminal in place of the one before, as far as it fits.

    Elsewhere `click.echo` leaves out the control characters.
    """
    is_terminal = sys.stdout.isatty()
    try:
        while True:
            try:
                lines = list(table(_chosen(services, _keys(services, prefix, task), **chosen))) or [
                    "no locks"
                ]
            except StoreUnavailable as error:
                lines = [f"Error: {error}"]
            if is_terminal:
                height = max(shutil.get_terminal_size().lines - 2, 2)
                more = [f"and {len(lines) - height + 1} more rows"] if len(lines) > height else []
                lines = lines[: height - len(more)] + more
            click.echo("\n".join(["\x1b[H\x1b[J" + time.strftime("%H:%M:%S"), *lines]))
            time.sleep(_PAUSE)
    except KeyboardInterrupt:
        return
