"""Notices workers of another project in a namespace, before their locks and waiting tasks mix.

Another project has another app name and shares no queue, unlike a renamed app or the parts of one project.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from celery_exclusive.display import printable
from celery_exclusive.errors import ExclusiveError, OptionError, docs_page
from celery_exclusive.messages.namespace import (
    LIFE,
    broker_on_store,
    keep_namespace,
    living_workers,
    own_broker,
)
from celery_exclusive.stores.workers import digests, in_digests
from celery_exclusive.worker.gate import GatedTask

if TYPE_CHECKING:
    from celery_exclusive.services import Services
    from celery_exclusive.stores.workers import WorkerRecord

_NONE = "-"
"""The fingerprint of no secret."""


def described(services: Services, record: WorkerRecord) -> WorkerRecord:
    """Return the record of this worker with what other workers compare."""
    return replace(
        record,
        app=services.app.main or "",
        broker=broker_on_store(services),
        secrets=",".join(it or _NONE for it in services.signer.fingerprints),
        queues=digests(services.app.amqp.queues.consume_from),
        tasks=digests(_tasks_with_own_keys(services)),
    )


def keep_record(services: Services, own: WorkerRecord) -> str:
    """Keep the namespace and the record of this worker, and return the broker that it is kept for.

    OptionError: it is another broker's, or a worker of another project has started meanwhile.
    """
    broker = keep_namespace(services, own_broker(services), own)
    try:
        look_at_neighbours(services, own, elders=True)
    except OptionError:
        with suppress(ExclusiveError):
            services.store.forget_worker(own)  # which would refuse the next workers of both for a minute
        raise
    return broker


def look_at_neighbours(services: Services, own: WorkerRecord, *, elders: bool = False) -> list[str]:
    """Return warnings; OptionError: another project's worker has tasks with the same keys, or another secret.

    `elders`: only about those that were started before this one. Of two that start at once one is refused.
    """
    found = dict[str, str]()
    for other in living_workers(services):
        is_elder = (other.since, other.number) < (own.since, own.number)
        if elders and not is_elder:
            continue
        if _is_of_other_project(services, own, other):
            _refuse(services, own, other)
            found[other.app] = (
                f"{_names(services, other)}. The two share what key= and lock() name. If that is not meant, "
                f"{_advice(own)}"
            )
        elif not _has_same_secret(own, other):
            found[""] = (
                f"worker {other} has another exclusive_secret, or accepts less: what waits for a lock is not "
                f"published by workers that cannot verify it. See {docs_page('how-to/security')}"
            )
    return list(found.values())


def _is_of_other_project(services: Services, own: WorkerRecord, other: WorkerRecord) -> bool:
    if not own.app or not other.app or own.app == other.app:
        return False
    return not in_digests(services.app.amqp.queues.consume_from, other.queues)


def _has_same_secret(own: WorkerRecord, other: WorkerRecord) -> bool:
    """Whether each accepts what the other signs."""
    ours, theirs = own.secrets.split(","), other.secrets.split(",")
    return ours[0] in theirs and theirs[0] in ours


def _refuse(services: Services, own: WorkerRecord, other: WorkerRecord) -> None:
    problem = ""
    if tasks := in_digests(_tasks_with_own_keys(services), other.tasks):
        problem = f"task {tasks[0]} of both would have the same keys"
    elif not _has_same_secret(own, other):
        problem = "their exclusive_secret differ, so each sets aside the waiting tasks of the other"
    if problem:
        raise OptionError(f"{_names(services, other)}, and {problem}: {_advice(own)}")


def _names(services: Services, other: WorkerRecord) -> str:
    prefix, url = services.settings.exclusive_prefix, services.store.url
    return (
        f"exclusive_prefix={prefix!r} in {url} is used by worker {other} of app {printable(other.app)!r}, "
        f"and this is app {services.app.main!r}"
    )


def _advice(own: WorkerRecord) -> str:
    prefix = "".join(it if it.isalnum() else "-" for it in own.app)
    return (
        f"set app.conf.exclusive_prefix = {prefix!r} in all processes of this app. If the two are one "
        f"project, give both apps one name. A worker that has ended is forgotten after {LIFE} s"
    )


def _tasks_with_own_keys(services: Services) -> list[str]:
    return [
        name
        for name, task in services.app.tasks.items()
        if isinstance(task, GatedTask)
        and any(it and it.key is None for it in (services.exclusive(task), services.unique(task)))
    ]
