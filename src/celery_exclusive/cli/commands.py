"""The commands of `celery -A proj locks`: they list and release locks, and make the tables for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from shlex import quote
from typing import Any

import click
from celery.bin.base import CLIContext

from celery_exclusive.cli.listing import duration, listing, record, state_of, table
from celery_exclusive.core.claim import task_id
from celery_exclusive.core.records import SECOND
from celery_exclusive.display import escaped, printable, unescaped
from celery_exclusive.errors import ExclusiveError, did_you_mean
from celery_exclusive.leases import operator_release
from celery_exclusive.messages.namespace import LIFE, adopt_namespace, own_broker
from celery_exclusive.options.key_text import possible_keys
from celery_exclusive.services import ATTRIBUTE, Services
from celery_exclusive.stores.base import Store, states
from celery_exclusive.stores.sql.tables import NAMES

commands = click.Group()


@commands.command
@click.argument("prefix", default="")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object per line, for programs. Times are seconds."
)
@click.pass_obj
def ls(obj: CLIContext, prefix: str, *, as_json: bool) -> None:
    """List the keys that have a holder or waiting tasks.

    PREFIX lists only the keys that begin with it: a task's name, a string given to key= or lock(), or a key
    as it is listed.

    \b
    KEY         the key, for `locks release`: x: and a task, x= and a string that tasks share; u: and u= if it
                is a unique key, d: and d= if it is a window of calls
    TASK        the task of the key; - if tasks share it, or if this app does not know the task
    HOLDER      the id of the task that holds the lock; one row for each holder
    STATE       running
                queued: the key of a task, or of a retry that keeps its lock, that has not begun, or
                    whose message is lost
                period: a unique key that expires by the clock alone
                waiting: no holder, the lock is offered to the first in line, or a window is open
                aside: no worker accepts the waiting tasks; is there a worker for their queue?
                damaged: its data in the store cannot be read; `locks release --force` deletes them
    AGE         for how long the holder has held it
    LEASE LEFT  when the lease expires if it is not renewed: workers renew it while the task runs
    WAITING     how many tasks wait in line
    FENCE       the number of this lease; the next one of this key has a higher one
    """
    services = _services(obj)
    keys = _keys(services.store, prefix)
    found = listing(services, keys)
    if not keys:
        click.echo(f"no key of a lock begins with {prefix!r}" if prefix else "no locks", err=True)
    for line in (json.dumps(record(*lock)) for lock in found) if as_json else table(found):
        click.echo(line)


@commands.command
@click.argument("key")
@click.pass_obj
def show(obj: CLIContext, key: str) -> None:
    """Show the holders of KEY, and the first ten tasks in its line.

    KEY is a key as `locks ls` lists it, the name of a task, or the string of a key= or of a lock(). Of a task
    in line it says for how long it has waited, when its window of newer calls closes, and when it gives up or
    expires.
    """
    store = _services(obj).store
    chosen = _busy_key(store, key)
    click.echo(f"lock {escaped(chosen)}")
    for line in state_of(store.inspect(chosen)):
        click.echo(f"  {line}")


@commands.command
@click.argument("key")
@click.option("--force", is_flag=True, help="Release the lock even if its lease has not expired.")
@click.option(
    "--queued", is_flag=True, help="KEY is a task: release all its keys whose messages have not begun."
)
@click.option("--yes", is_flag=True, help="With --queued: do not ask.")
@click.pass_obj
def release(obj: CLIContext, key: str, *, force: bool, queued: bool, yes: bool) -> None:
    """Release the lock on KEY, and let its line go on.

    KEY is a key as `locks ls` lists it, the name of a task, or the string of a key= or of a lock(). Nothing
    is released if it may mean several held keys, as the name of a task whose arguments make several keys.

    The unique key of a task that has not begun, or of a period, is released at once. The message is not
    deleted: a task that has not run yet runs all the same, unless its message is lost. A held lock is not
    released without --force: it is released when the task ends, or, if its worker is dead, after the time
    that `locks ls` shows as LEASE LEFT. With --force the holder loses it at once; a task that still runs goes
    on beside the next one, unless it calls lease.check(), which raises LeaseLost. The data of a damaged key
    are deleted by --force, with the tasks that wait for it.

    After `celery purge`, --queued releases the unique keys of a task, with all its arguments, whose messages
    have not begun. It shows how many, and asks first.

    Exit code: 0 if the lock was released, 1 if it was refused or if there is no such lock.
    """
    if queued and force:
        raise click.UsageError("--queued needs no --force: no body runs")
    services = _services(obj)
    if queued:
        _release_queued(services, key, yes=yes)
        return
    store = services.store
    chosen = _busy_key(store, key)
    released = operator_release.release(services, chosen, force=force)
    click.echo(f"lock {escaped(chosen)}")
    for line in _result_lines(released, store.inspect(chosen).all_waiting):
        click.echo(f"  {line}")


@commands.command
@click.option("--drop", is_flag=True, help="Delete all leases and waiting tasks instead.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def adopt(obj: CLIContext, *, drop: bool, yes: bool) -> None:
    """Take over the locks and waiting tasks of another broker whose workers have gone.

    Workers do not start where tasks of another broker wait: in a copy of production's database, workers of a
    test system would run production's tasks. After this, workers of this app run them. With --drop no worker
    does: all leases and waiting tasks with this exclusive_prefix are deleted.

    If both are one broker under two names, set exclusive_broker_id instead.
    """
    services = _services(obj)
    store, broker = services.store, own_broker(services)
    owner = store.keep_namespace(broker, LIFE * SECOND)
    if owner == broker:
        click.echo(f"nothing to adopt: this belongs to {printable(broker)}, the broker of this app")
        return
    count = sum(1 for _ in store.places())
    click.echo(f"this belongs to the broker {printable(owner)}, and {count} of its tasks wait here")
    click.echo("those that ran with late acknowledgement would run again, too")
    if not yes:
        what = "delete them, and all leases?" if drop else f"let workers of {printable(broker)} run them?"
        click.confirm(what, abort=True)
    adopt_namespace(services, drops=drop)
    click.echo("deleted" if drop else f"this belongs to {printable(broker)} now")


@commands.command("create-tables")
@click.option("--print", "only_print", is_flag=True, help="Print the SQL, and connect to no database.")
@click.pass_obj
def create_tables(obj: CLIContext, *, only_print: bool) -> None:
    """Make the tables of a store in a database server.

    Workers and publishers make them when they first use the store. Where their user may not, an administrator
    with the right runs this command once, or the statements that it prints:

    \b
    celery -A proj locks create-tables --print | psql ...
    celery -A proj locks create-tables --print | mariadb ...
    """
    store: Any = _services(obj, is_used=False).store
    if not hasattr(store, "create_tables"):
        raise click.ClickException(f"{printable(store.url)} is no database server: it makes what it needs")
    if only_print:
        click.echo("".join(f"{statement};\n" for statement in store.definitions()), nl=False)
    else:
        store.create_tables()
        click.echo(f"the tables are in {printable(store.url)}")
    click.echo("if workers and publishers are another user there:", err=True)
    for name in NAMES:
        click.echo(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {name} TO ...;", err=True)


def _services(obj: CLIContext, *, is_used: bool = True) -> Services:
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
        store.epoch()  # a node of a Redis Cluster would list no keys, and not say why
    if store.capabilities.one_process:
        click.echo(f"Warning: {url} is the memory of one process, and this is another process", err=True)
    return services


def _keys(store: Store, prefix: str) -> list[str]:
    """Return the keys with this beginning, or just this key if the store cannot list its keys."""
    shown, written = possible_keys(prefix), possible_keys(unescaped(prefix))
    if store.capabilities.listing or not prefix:
        return [key for key in store.scan() if escaped(key).startswith(shown) or key.startswith(written)]
    return [key for key, snapshot in states(store, written) if snapshot.is_busy]


def _busy_key(store: Store, text: str) -> str:
    """Return the key that `ls` shows as this word, or else the key of the task or string of this name."""
    shown_so = unescaped(text)
    meant = list(dict.fromkeys((*possible_keys(shown_so), *possible_keys(text))))
    busy = [key for key, seen in zip(meant, store.inspect_all(meant), strict=True) if seen.is_busy]
    if len(busy) == 1 or shown_so in busy:
        return busy[0]
    if busy:
        raise click.ClickException(f"{text!r} may mean {' or '.join(map(escaped, busy))}: name one of them")
    shown = {escaped(key): key for key in (store.scan() if store.capabilities.listing else ())}
    begin = [key for key in shown if key[2:].startswith(f"{text}:")]
    if len(begin) == 1:
        return shown[begin[0]]
    if begin:
        raise click.ClickException(
            f"{text!r} has {len(begin)} keys; name one, as `locks ls {quote(escaped(text))}` lists them"
        )
    names = (name for key in shown for name in (key, key[2:], key[2:].rpartition(":")[0]))
    others = [other for other in names if other not in ("", text)]
    hint = did_you_mean(text, others)
    raise click.ClickException(
        f"no task holds or waits for {text!r} in {printable(store.url)}{hint}"
        + " `locks ls` lists all keys" * store.capabilities.listing
    )


def _release_queued(services: Services, task: str, *, yes: bool) -> None:
    found = operator_release.queued_keys(services.store, task)
    if not found:
        raise click.ClickException(
            f"no unique key of task {task!r} is queued in {printable(services.store.url)}"
            + did_you_mean(task, set(services.app.tasks) - {task})
        )
    click.echo(f"{len(found)} keys, as {escaped(found[0])}, of tasks that have not begun, or are lost")
    click.echo("a message that is still in a queue runs all the same, and its call may be queued again")
    if not yes:
        click.confirm("release them?", abort=True)
    click.echo(f"released {operator_release.release_queued(services, found)} of {len(found)}")


def _result_lines(released: operator_release.Released, waiting: int) -> Iterator[str]:
    if released.forgotten:
        yield "its data were damaged and are deleted, with its leases and the tasks that waited in line"
        return
    for owner in released.former:
        yield f"released the lease of {printable(task_id(owner.id))}, held for {duration(owner.age)}"
    if any(owner.phase == "running" for owner in released.former):
        yield "if its process lives, its body goes on, and its lease.check() raises LeaseLost"
    elif any(owner.phase == "period" for owner in released.former):
        yield "its period has ended; if its task has not run yet, it runs all the same"
    elif released.former:
        yield "if its message is not lost, its task runs all the same"
    else:
        yield "it had no holder"
    offered = ", ".join(printable(task_id(id)) for id in released.offered)
    yield f"{waiting} in line for this key" + (f", the lock is offered to {offered}" if offered else "")
