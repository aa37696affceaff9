"""The commands of `celery -A proj locks` that change something: they release locks, and make the tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click
from celery.bin.base import CLIContext

from celery_exclusive import events, notices
from celery_exclusive.cli.app import app_services
from celery_exclusive.core.claim import task_id
from celery_exclusive.core.records import SECOND
from celery_exclusive.display import duration, escaped, printable
from celery_exclusive.errors import LockHeld, did_you_mean
from celery_exclusive.leases import operator_release
from celery_exclusive.messages.namespace import LIFE, adopt_namespace, own_broker
from celery_exclusive.operate.answers import refusal, worker_text
from celery_exclusive.operate.finding import find_key
from celery_exclusive.operate.patience import PATIENCE, NoAnswer, ask_broker
from celery_exclusive.operate.states import key_state
from celery_exclusive.services import Services
from celery_exclusive.stores.sql.tables import NAMES
from celery_exclusive.system.operator import operator

commands = click.Group()


@commands.command
@click.argument("key", required=False)
@click.option("--force", is_flag=True, help="Release the lock even if its lease has not expired.")
@click.option("--reason", default="", help="Why, for the log and the event. --force needs it.")
@click.option(
    "--queued", is_flag=True, help="KEY is a task: release all its keys whose messages have not begun."
)
@click.option("--all", "of_all", is_flag=True, help="With --queued: of all tasks, and no KEY.")
@click.option("--yes", is_flag=True, help="With --queued: do not ask.")
@click.pass_obj
def release(
    obj: CLIContext, key: str | None, *, force: bool, reason: str, queued: bool, of_all: bool, yes: bool
) -> None:
    """Release the lock on KEY, and let its line go on.

    KEY is a key as `locks ls` lists it, the name of a task, or the string of a key= or of a lock(). Nothing
    is released if it may mean several held keys, as the name of a task whose arguments make several keys.

    The unique key of a task that has not begun, or of a period, is released at once. The message is not
    deleted: a task that has not run yet runs all the same, unless its message is lost. A held lock is not
    released without --force: it is released when the task ends, or, if its worker is dead, when its
    lease has expired, as `locks show` says. With --force the holder loses it at once; a task that still runs
    goes on beside the next one, unless it calls lease.check(), which raises LeaseLost. The data of a damaged
    key are deleted by --force, with the tasks that wait for it.

    Each release is logged as a WARNING, and told to monitors as the event lock-released: the operator, the
    key, its holder, the holder's worker, and the reason.

    After `celery purge`, --queued releases the unique keys of a task, with all its arguments, whose messages
    have not begun, and --queued --all the keys of all tasks. It shows how many, and asks first.

    Exit code: 0 if the lock was released, 1 if it was refused or if there is no such lock, 3 if the store
    does not answer.
    """
    if of_all is not (key is None) or (of_all and not queued):
        raise click.UsageError("give a KEY, or --queued --all for the queued keys of all tasks")
    if queued and force:
        raise click.UsageError("--queued needs no --force: no body runs")
    if force and not reason.strip():
        raise click.UsageError(
            "--force takes a lock from a body that may still run: say why, for the log and the event, with "
            "--reason 'worker web3 is dead'"
        )
    services = app_services(obj)
    if queued or key is None:
        _release_queued(services, key, reason=reason, yes=yes)
    else:
        _release(services, find_key(services.store, key), force=force, reason=reason)
    farewell(services)


@commands.command
@click.option("--drop", is_flag=True, help="Delete all leases and waiting tasks instead.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--reason", default="", help="Why, for the log and the event.")
@click.pass_obj
def adopt(obj: CLIContext, *, drop: bool, yes: bool, reason: str) -> None:
    """Take over the locks and waiting tasks of another broker whose workers have gone.

    Workers do not start where tasks of another broker wait: in a copy of production's database, workers of a
    test system would run production's tasks. After this, workers of this app run them. With --drop no worker
    does: all leases and waiting tasks with this exclusive_prefix are deleted.

    A WARNING and the event lock-adopted name the operator, the reason and the number.

    If both are one broker under two names, set exclusive_broker_id instead.
    """
    services = app_services(obj)
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
    notices.adopted_by_operator(services, owner, count, operator(), reason, drops=drop)
    events.wait(PATIENCE)
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
    store: Any = app_services(obj, is_used=False).store
    if not hasattr(store, "create_tables"):
        raise click.ClickException(f"{printable(store.url)} is no database server: it makes what it needs")
    if only_print:
        click.echo("".join(f"{statement};\n" for statement in store.definitions()), nl=False)
    else:
        store.create_tables()
        click.echo(f"the tables are in {printable(store.url)}")
    click.echo(
        "if workers and publishers are another user there (on PostgreSQL with ?tables_of=MAKER in their URL, "
        "unless the maker owns the schema or database):",
        err=True,
    )
    for name in NAMES:
        click.echo(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {name} TO ...;", err=True)


def farewell(services: Services) -> None:
    """Wait until the broker has the event, and the messages that are next in line."""

    def wait() -> None:
        events.wait(PATIENCE)
        services.courier.close()

    try:
        ask_broker(services, wait)
    except NoAnswer as error:
        text = "workers publish what is next in line, and the event may be lost"
        click.echo(f"Warning: {error}: {text}", err=True)


def _release(services: Services, key: str, *, force: bool, reason: str) -> None:
    state = key_state(services, key)
    try:
        released = operator_release.release(services, key, force=force, reason=reason)
    except LockHeld as error:
        raise click.ClickException(refusal(state) if state.holders else str(error)) from error
    click.echo(f"lock {escaped(key)}")
    workers = {holder.task_id: f" on {worker_text(holder)}" for holder in state.holders if holder.workers}
    for line in _result_lines(released, workers, services.store.inspect(key).all_waiting):
        click.echo(f"  {line}")


def _release_queued(services: Services, task: str | None, *, reason: str, yes: bool) -> None:
    found = operator_release.queued_keys(services.store, task)
    if not found and task is None:
        raise click.ClickException(f"no unique key is queued in {printable(services.store.url)}.")
    if not found and task is not None:
        known = services.app.tasks.get(task)
        if known is not None and not services.unique(known):
            raise click.ClickException(f"task {task!r} has no unique= option, so no key of it is ever queued")
        raise click.ClickException(
            f"no unique key of task {task!r} is queued in {printable(services.store.url)}"
            + (did_you_mean(task, services.app.tasks) if known is None else ".")
        )
    click.echo(f"{len(found)} keys, as {escaped(found[0])}, of tasks that have not begun, or are lost")
    click.echo("a message that is still in a queue runs all the same, and its call may be queued again")
    if not yes:
        click.confirm("release them?", abort=True)
    click.echo(f"released {operator_release.release_queued(services, found, reason=reason)} of {len(found)}")


def _result_lines(
    released: operator_release.Released, workers: Mapping[str, str], waiting: int
) -> Iterator[str]:
    if released.forgotten:
        yield "its data were damaged and are deleted, with its leases and the tasks that waited in line"
        return
    for owner in released.former:
        holder = f"{printable(task_id(owner.id))}{workers.get(task_id(owner.id), '')}"
        yield f"released the lease of {holder}, held for {duration(owner.age / SECOND)}"
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
