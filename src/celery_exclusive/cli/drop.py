"""`locks drop` takes waiting tasks out of their lines and saves them, `locks put` publishes them again."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import click
from celery.bin.base import CLIContext
from celery.utils.functional import noop

from celery_exclusive import events, notices
from celery_exclusive.cli.app import app_services
from celery_exclusive.cli.limits import Time
from celery_exclusive.core.claim import task_id
from celery_exclusive.core.records import SECOND
from celery_exclusive.display import duration, escaped, printable
from celery_exclusive.errors import ExclusiveError, did_you_mean
from celery_exclusive.operate.dropping import Dropper, Found
from celery_exclusive.operate.finding import find_key
from celery_exclusive.operate.patience import PATIENCE, NoAnswer
from celery_exclusive.operate.putting import Outcome, Putter
from celery_exclusive.operate.saved import SavedFile
from celery_exclusive.services import Services
from celery_exclusive.stores.base import states
from celery_exclusive.system.operator import operator

_SHOWN: Final = 10
"""The number of tasks, and of problems, that are shown one by one."""
_EVERY: Final = 100
"""The number of tasks after which the progress is shown anew."""


@click.command
@click.argument("key", default="")
@click.option("--task", default="", help="The waiting tasks of this name, with all their keys.")
@click.option("--older-than", type=Time(), default=0, help="Tasks that wait for so long: 90s, 30m, 1h.")
@click.option(
    "--ids",
    type=click.File(errors="replace"),
    help="A file with the ids of tasks, one per line; - is the input.",
)
@click.option(
    "--to", type=click.Path(dir_okay=False, path_type=Path), help="Save the whole messages in this file."
)
@click.option("--discard", is_flag=True, help="Save no messages: the tasks cannot be put back.")
@click.option("--dry-run", is_flag=True, help="Show what would be dropped, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--reason", default="", help="Why, for the log, the event, and the results of the tasks.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as a JSON object.")
@click.pass_obj
def drop(
    obj: CLIContext,
    /,
    *,
    to: Path | None,
    dry_run: bool,
    yes: bool,
    reason: str,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Take waiting tasks out of the line of KEY, and end each as REVOKED.

    KEY is a key as `locks ls` lists it, the name of a task, or the string of a key= or of a lock(). Tasks in
    line and aside are dropped, and windows of calls; no task that runs. The results, chords and unique keys
    of the tasks end as of any revoked task, by this command: no worker need run.

    Each message is saved, durably, before its task leaves the line: `locks put FILE` publishes the messages
    again. If this command is killed, start it again with the same file: it completes what it has begun.
    A WARNING and the event lock-dropped name the operator, the reason and the numbers.

    \b
    celery -A proj locks drop x:feeds.import_feed:8c24... --to feeds.jsonl
    celery -A proj locks drop --task feeds.import_feed --older-than 1h --to feeds.jsonl

    Exit code: 0 if no chosen task waits any more, 1 if there was a problem, 2 for wrong usage.
    """
    _check(to, may_change=not dry_run, is_asked=not yes, **chosen)
    services = app_services(obj)
    found = _find(services, **chosen)
    if dry_run:
        _show(found, as_json=as_json)
        return
    if not yes:
        _show(found, err=as_json)
        text = f"type {found.count} to drop them: each ends as REVOKED"
        if click.prompt(text, default="", show_default=False, err=as_json) != str(found.count):
            raise click.Abort
    with (
        _can_be_repeated(),
        SavedFile(to, services.settings.exclusive_prefix, services.store.epoch())
        if to
        else nullcontext() as file,
    ):
        dropper = Dropper(services, file, reason)
        try:
            if finished := dropper.finish():
                click.echo(f"completed an earlier drop of {finished} tasks", err=True)
            with _progress(found.count) as show:
                for key, places in found.places():
                    dropper.drop(key, places)
                    show(dropper.dropped + dropper.left - finished)
        finally:
            dropper.record(operator())
            events.wait(PATIENCE)
    problems = [*found.problems, *dropper.problems]
    if as_json:
        result = {"dropped": dropper.dropped, "left": dropper.left, "file": to and str(to)}
        click.echo(json.dumps({**result, "problems": problems}))
    else:
        click.echo(f"dropped {dropper.dropped} tasks" + (f", saved in {printable(str(to))}" if to else ""))
        if dropper.left:
            click.echo(f"{dropper.left} had left the line before: they run, or have ended")
        _show_problems(problems)
    sys.exit(bool(problems))


@click.command
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--limit", type=click.IntRange(min=1), help="Put only so many: the same command puts the next ones."
)
@click.option("--again", is_flag=True, help="Also the tasks that were put before: they run once more.")
@click.option("--reason", default="", help="Why, for the log and the event.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as a JSON object.")
@click.pass_obj
def put(obj: CLIContext, file: Path, *, limit: int | None, again: bool, reason: str, as_json: bool) -> None:
    """Publish the tasks of a FILE of `locks drop` again, with their ids, at the end of their lines.

    The store and the broker are the ones of the app, which may be others than at the drop. A unique key
    is acquired as for a new call: a task whose key is held is skipped. `.get()` waits for the result again.

    FILE notes which tasks were put, so the same command puts none twice, and continues if it was killed.
    A WARNING and the event lock-put name the operator, the reason and the numbers.

    Exit code: 0 if all tasks were put, now or before, or as many as --limit says, 1 if some were not.
    """
    if limit and again:
        raise click.UsageError("--again starts at the first task of FILE each time, so it takes no --limit")
    services = app_services(obj)
    counts = Counter[Outcome]()
    with _can_be_repeated(), SavedFile(file) as saved:
        putter = Putter(services, saved, again=again)
        try:
            with _progress(len(saved.fates)) as show:
                for outcome in putter.put_all():
                    counts[outcome] += 1
                    show(counts.total())
                    if counts["put"] == limit:
                        break
        finally:
            if counts["put"]:
                notices.put_by_operator(services, counts, operator(), reason, str(file))
                events.wait(PATIENCE)
    if as_json:
        click.echo(json.dumps({**{name: counts[name] for name in _WORDS}, "problems": putter.problems}))
    else:
        for outcome, words in _WORDS.items():
            if counts[outcome] or outcome == "put":
                click.echo(f"{counts[outcome]} {words}")
        if counts["put"] == limit and (rest := Counter(saved.fates.values())["ended"]):
            click.echo(f"{rest} remain in the file: the same command puts the next ones")
        _show_problems(putter.problems)
    sys.exit(bool(counts["held"] + counts["damaged"] + counts["unfinished"]))


_WORDS: Final[dict[Outcome, str]] = {
    "put": "tasks put",
    "known": "were put by an earlier command: the store knows them",
    "before": "were put before, as the file says: --again puts them once more",
    "left": "had left their line before they could be dropped",
    "unfinished": "may wait in their old line: complete that `locks drop --to` with the same file first",
    "held": "skipped, since their unique keys are held",
    "damaged": "damaged",
}


def _check(
    to: Path | None,
    *,
    key: str,
    task: str,
    ids: Any,
    discard: bool,
    may_change: bool,
    is_asked: bool,
    **_: Any,
) -> None:
    problem = ""
    if not (key or task or ids):
        problem = "name a KEY, or a --task, or --ids"
    elif key and task:
        problem = "name a KEY or a --task, not both"
    elif may_change and bool(to) == discard:
        problem = "name a file with --to, which `locks put` reads, or say --discard: one of them"
    elif may_change and is_asked and not sys.stdin.isatty():
        problem = "there is no terminal to ask at: say --yes, or --dry-run"
    if problem:
        raise click.UsageError(problem)


def _find(services: Services, *, key: str, task: str, older_than: float, ids: Any, **_: Any) -> Found:
    store = services.store
    if key:
        keys = [find_key(store, key)]
    else:  # the index of lines may miss one that changes meanwhile
        keys = [key for key, it in states(store, [*store.scan()]) if it.all_waiting or it.problem]
    found = Found.search(
        services,
        keys,
        task=task,
        older_than=int(older_than * SECOND),
        ids={line.strip() for line in ids} - {""} if ids else None,
    )
    names = services.app.tasks
    if task and not found.count and task not in names:
        found.problems.append(f"the app has no task {task!r}{did_you_mean(task, names)}")
    return found


@contextmanager
def _can_be_repeated() -> Iterator[None]:
    """Make one line of an error of the disk, the broker or the result backend, with the next step."""
    try:
        yield
    except NoAnswer as error:
        raise NoAnswer(f"{error}; mend that, and start the same command again") from error
    except ExclusiveError:
        raise
    except Exception as error:
        why = printable(f"{type(error).__name__}: {error}")
        raise click.ClickException(f"{why}; mend that, and start the same command again") from error


def _show(found: Found, *, as_json: bool = False, err: bool = False) -> None:
    if as_json:
        result = {"would_drop": found.count, "keys": len(found.ids), "problems": found.problems}
        click.echo(json.dumps(result))
        return
    click.echo(f"would drop {found.count} tasks of {len(found.ids)} keys", err=err)
    for key, one in found.first:
        id, age = printable(task_id(one.id)), duration(one.age / SECOND)
        click.echo(f"  {id}, in line of {escaped(key)} for {age}", err=err)
    _show_problems(found.problems)


@contextmanager
def _progress(count: int) -> Iterator[Callable[[int], None]]:
    """Give a function that shows on a terminal how many tasks of these are done."""
    if not sys.stderr.isatty():
        yield noop
        return

    def show(done: int) -> None:
        if done % _EVERY == 0 or done >= count:
            click.echo(f"\r{done:,} of {count:,}", err=True, nl=False)

    try:
        yield show
    finally:
        click.echo(err=True)


def _show_problems(problems: list[str]) -> None:
    for problem in problems[:_SHOWN]:
        click.echo(f"  {printable(problem)}", err=True)
    if len(problems) > _SHOWN:
        click.echo(f"  and {len(problems) - _SHOWN} more", err=True)
