"""Checks at the start of a worker: whether broker and store fit the declared tasks, and warnings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from celery_exclusive.brokers import (
    is_in_one_process,
    is_on_this_machine,
    is_server_of_broker,
    refuse_unproven,
    refuse_without_transport,
    unproven,
)
from celery_exclusive.core.records import SECOND
from celery_exclusive.errors import OptionError, docs_page, keeps_no_room
from celery_exclusive.options.declared import Debounce, Exclusive, Unique, UniqueOption
from celery_exclusive.options.option import Option
from celery_exclusive.options.settings import named_store, visibility_timeout
from celery_exclusive.seams import probe
from celery_exclusive.seams.probe import load_transport
from celery_exclusive.stores.base import Store, open_store
from celery_exclusive.stores.choose import DJANGO_CACHE, SHARED_ORIGINS
from celery_exclusive.worker.gate import GatedTask
from celery_exclusive.worker.pool import kind_of

if TYPE_CHECKING:
    from celery_exclusive.services import Services

_FILE = "sqlite:////path/to/locks.db"


def refuse_changed_names(app: Any) -> None:
    """Raise OptionError if a private name is missing or changed that a promise depends on."""
    load_transport(app)
    if found := probe.refusals():
        raise OptionError(found[0])
    # A publish may have looked before all modules were imported.
    vars(app._celery_exclusive).pop("is_fast", None)


def refuse_unfit(services: Services, pool: Any) -> None:
    """Raise OptionError if pool, broker or store cannot keep the promises of the tasks' options."""
    kind = kind_of(pool)
    refuse_without_transport(services.app.conf)
    if not services.settings.exclusive_unproven_broker:
        refuse_unproven(services.app.conf)
    store, capabilities = services.store, services.store.capabilities
    if capabilities.one_process and kind == "prefork":
        raise OptionError(
            f"exclusive_store: {store.url} is the memory of one process, and each child of "
            "this worker has its own: name a store that processes share, such as redis://localhost/0 or the "
            f"file {_FILE}; in a test, use --pool=threads or --pool=solo"
        )
    for task, option in _declared(services):
        _refuse_wait(store, task.name, option)
        _refuse_recover(store, task, option)


def refuse_declared(conf: Any, task_name: str, option: Option) -> None:
    """Raise OptionError if a task waits in line, and the named store keeps none. A wrong URL is for later."""
    url = named_store(conf)
    if url is None or not (_waits(option) or _needs_room(option)):
        return
    try:
        store = open_store(url)
    except OptionError:
        return
    _refuse_wait(store, task_name, option)


def _waits(option: Option) -> bool:
    return isinstance(option, Debounce) or (isinstance(option, Exclusive) and option.has_line)


def _needs_room(option: Option) -> bool:
    return isinstance(option, Exclusive) and bool(option.rates or option.cost != 1 or option.per)


def _refuse_wait(store: Store, task_name: str, option: Option) -> None:
    if _waits(option) and not store.capabilities.line:
        others = "give it on_conflict='skip' or 'reschedule', or " * isinstance(option, Exclusive)
        raise OptionError(
            f"exclusive_store: {store.url} keeps no line, and task {task_name} with {option!r} has "
            f"to wait in one: {others}name a redis://, postgresql:// or sqlite:// URL"
        )
    if _needs_room(option) and not store.capabilities.line:
        raise keeps_no_room(store.url, f"task {task_name} with {option!r}")


def _refuse_recover(store: Store, task: Any, option: Option) -> None:
    if not option.recover:
        return
    if not task.acks_late:
        raise OptionError(
            f"task {task.name} with {option!r} acknowledges its message when it begins, and so it is never "
            "recovered: give it acks_late=True, or set task_acks_late, or leave recover=True out"
        )
    if not store.capabilities.line:
        raise OptionError(
            f"exclusive_store: {store.url} keeps no messages, and task {task.name} with {option!r} needs its "
            "own there: leave recover=True out, or name a redis://, postgresql:// or sqlite:// URL"
        )


def warnings(services: Services) -> list[str]:
    """Return the warnings of the store, of the settings, and about private names that are missing."""
    return [*services.store.check(), *setting_warnings(services), *probe.warnings()]


def setting_warnings(services: Services) -> list[str]:
    """Return the warnings about broker and store, and about the setting in which the store was found."""
    store, capabilities, found = services.store, services.store.capabilities, []
    is_of_one_host = capabilities.one_host and not capabilities.one_process
    if is_of_one_host and not is_on_this_machine(services.app.conf):
        found.append(
            f"store {store.url}: only processes on this machine share it, but the broker can be reached from "
            "other machines: tasks there would use other locks. Run all workers here, or set exclusive_store "
            "to a server that all machines can reach"
        )
    if capabilities.one_process and not is_in_one_process(services.app.conf):
        found.append(
            f"store {store.url}: it is the memory of this process, but its broker serves others too: another "
            "worker, or lock() in another process, would use other locks. Outside of tests name a store that "
            f"processes share, such as the file {_FILE}"
        )
    publishes = capabilities.line and not (capabilities.one_host or capabilities.one_process)
    if publishes and not services.signer.is_on and not is_server_of_broker(store.url, services.app.conf):
        found.append(
            f"store {store.url}: it is another server than the broker, and tasks that wait are published "
            "from there, so every client with write access to it can publish tasks. Set exclusive_secret to "
            f"one random string in all processes: see {docs_page('how-to/security')}"
        )
    if services.origin == DJANGO_CACHE:
        found.append(
            f"store {store.url}: cache.clear() empties the whole database of {DJANGO_CACHE}, and locks and "
            "waiting tasks are in it: set exclusive_store to another database"
        )
    elif services.origin not in SHARED_ORIGINS and _publishers_ask(services):
        found.append(
            f"store {store.url}: it was found in the {services.origin}, which a process that only publishes "
            "may not have: its calls would be refused, or dropped by the locks of another store. Set "
            "exclusive_store to this URL in all processes"
        )
    sent = [(task, option) for task, option in _declared(services) if _sends_duplicates(task, option)]
    if sent and services.has_rpc_results:
        task, option = sent[0]
        or_raise = " or on_conflict='raise'" * isinstance(option, Unique)
        found.append(
            f"result_backend rpc: duplicates of task {task.name} are published, and a worker skips them, "
            "since such a result reaches only its own caller. To keep them out of the queue set "
            f"ignore_result=True{or_raise}, or another result backend"
        )
    if found_unproven := unproven(services.app.conf):  # and accepted, else no worker would start
        found.append(f"{found_unproven}. exclusive_unproven_broker accepts it")
    timeout = visibility_timeout(services.app.conf)
    short = [
        task.name
        for task, option in _declared(services)
        if isinstance(option, Exclusive) and timeout is not None and timeout * SECOND < services.ttl(option)
    ]
    if short:
        found.append(
            f"broker_transport_options: the visibility_timeout of {timeout:g} s is below the ttl of task "
            f"{short[0]}: a task that runs longer is redelivered again and again, and each copy waits "
            "for it. Set it above the run time of your longest task"
        )
    return found


def _publishers_ask(services: Services) -> bool:
    options = [option for _, option in _declared(services)]
    return any(not isinstance(it, Exclusive) or services.order(it) == "published" for it in options)


def _sends_duplicates(task: Any, option: Option) -> bool:
    """Whether duplicates of a task are published if their results are sent to their callers alone."""
    return isinstance(option, UniqueOption) and not (option.refuses_duplicates or task.ignore_result)


def _declared(services: Services) -> Iterator[tuple[Any, Option]]:
    for task in services.app.tasks.values():
        options = (services.exclusive(task), services.unique(task)) if isinstance(task, GatedTask) else ()
        yield from ((task, option) for option in options if option)
