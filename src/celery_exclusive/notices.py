"""Log lines: the one module that reports events to operators, in the form of Celery's own log lines.

Every record is one printable line, since other programs wrote the keys, ids and names in it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING
from weakref import WeakSet

from celery_exclusive import events
from celery_exclusive.core.claim import task_id
from celery_exclusive.core.operations import Owner
from celery_exclusive.core.records import SECOND
from celery_exclusive.display import OneLine
from celery_exclusive.errors import UnreadableKey
from celery_exclusive.system.threads import run_in_hub

if TYPE_CHECKING:
    from celery_exclusive.services import Services


logger = logging.getLogger("celery_exclusive")
logger.addFilter(OneLine())
_named_stores: WeakSet[Services] = WeakSet()
"""The apps of this process whose store is in the log."""


def skipped(task: str, id: str, lock: str, by: Sequence[Owner], others: int) -> None:
    logger.info("Task %s[%s] skipped: lock %s %s", task, id, lock, held(by, others))


def given_up(task: str, id: str, lock: str, seconds: float | None, by: Sequence[Owner], others: int) -> None:
    logger.info("Task %s[%s] skipped: it %s", task, id, gave_up_waiting(lock, seconds, by, others))


def replaced(task: str, id: str, lock: str, newer: str) -> None:
    text = "Task %s[%s] skipped: the newer task %s has taken its place in the line of lock %s"
    logger.info(text, task, id, newer, lock)


def duplicate(task: str, id: str, key: str, existing_id: str) -> None:
    logger.info("Task %s[%s] skipped: unique key %s is held by %s", task, id, key, existing_id)


def not_sent(task: str, key: str, existing_id: str) -> None:
    logger.info("Task %s was not published: unique key %s is held by %s", task, key, existing_id)


def continues_without_key(task: str, id: str, key: str, error: Exception) -> None:
    text = "Task %s[%s] continues without unique key %s, and may be a duplicate: %s"
    logger.error(text, task, id, key, error)


def continues_without_window(task: str, id: str, key: str, error: Exception) -> None:
    text = "Task %s[%s] is sent at once, and not at the end of its window %s: %s"
    logger.error(text, task, id, key, error)


def has_no_window(task: str, id: str, key: str) -> None:
    text = (
        "Task %s[%s] is sent now, and does not wait in window %s: it has a countdown or an eta, or a queue "
        "to which a worker cannot publish it again"
    )
    logger.info(text, task, id, key)


def continues_without_place(task: str, id: str, lock: str, error: Exception) -> None:
    text = "Task %s[%s] is sent without its place in the line of lock %s, and may start out of order: %s"
    logger.error(text, task, id, lock, error)


def lock_not_left(task: str, id: str, lock: str, error: Exception) -> None:
    text = "Task %s[%s] could not leave lock %s to its retry, which waits for its turn: %s"
    logger.error(text, task, id, lock, error)


def rescheduled(task: str, id: str, lock: str, by: Sequence[Owner], others: int, pause: float) -> None:
    logger.info("Task %s[%s] rescheduled in %.1f s: lock %s %s", task, id, pause, lock, held(by, others))


def runs_without_option(task: str, id: str, lock: str) -> None:
    text = (
        "Task %s[%s] left the line of lock %s and runs without it: in this worker's code its task does not "
        "have the option that it was published with. Run the same release of the code on all workers"
    )
    logger.warning(text, task, id, lock)


def parked(task: str, id: str, lock: str, position: int, by: Sequence[Owner], others: int) -> None:
    where = f"number {position} in line" if position else "behind its own run"
    logger.info("Task %s[%s] parked: %s for lock %s %s", task, id, where, lock, held(by, others))


def stale(task: str, id: str, lock: str) -> None:
    text = "Task %s[%s] dropped: another copy of its message runs, or has finished, under lock %s"
    logger.info(text, task, id, lock)


def lease_lost(services: Services, task: str, id: str, lock: str) -> None:
    text = (
        "Task %s[%s] lost its lease on lock %s before its body ended: the lease expired without a renewal, "
        "or was released by force. Another task may have run at the same time: check what both have written"
    )
    logger.error(text, task, id, lock)
    events.send(services, "lock-lost", uuid=id, name=task, lock=lock)


def waits(owner_name: str, lock: str, by: Sequence[Owner], others: int) -> None:
    logger.info("%s waits for lock %s %s", owner_name, lock, held(by, others))


def may_wait_for_itself(lock: str) -> None:
    text = (
        "lock %s was acquired by the thread that waits for it now, without wait=. If the same code should "
        "release it, it waits for ever: a lock is not re-entrant"
    )
    logger.warning(text, lock)


def refuses_to_push(url: str, name: str) -> None:
    text = (
        "store %s refuses to push onto list %s in the call that acquires a unique key: its user may have no "
        "rights there, or it is no list. From now on messages of this process follow in a second call"
    )
    logger.warning(text, url, name)


def lost(owner_name: str, lock: str) -> None:
    text = (
        "%s lost its lease on lock %s before it released it: the lease expired without a renewal, or was "
        "released by force. Another owner may have held the lock at the same time"
    )
    logger.error(text, owner_name, lock)


def ended_before_commit(lock: str, alias: str, place: str) -> None:
    text = (
        "lock %s was released before the transaction of database %r is committed: the next holder does not "
        "see what was written under it (%s). Put the transaction inside, `with lock(...), "
        "transaction.atomic():`, or hold it with lock(..., until_commit=True). lock(..., until_commit=False) "
        "releases it here without this warning"
    )
    logger.warning(text, lock, alias, place)


def forgotten(lock: str, ttl: float) -> None:
    text = (
        "a lock() object was deleted without release(): its lease on lock %s expires in %g s. Use "
        "`with lock(...)`, or keep the object and call release()"
    )
    run_in_hub(logger.warning, text, lock, ttl)


def restored(url: str, locks: Sequence[str]) -> None:
    text = (
        "store %s has lost its data: other owners may have held %s meanwhile. Each lease was restored, "
        "unless its lock has a new holder"
    )
    run_in_hub(logger.error, text, url, ", ".join(locks))


def full(task: str, id: str, lock: str, waiting: int, by: Sequence[Owner], others: int) -> None:
    text = "Task %s[%s] skipped: the line of lock %s is full, with %d waiting; the lock is %s"
    logger.info(text, task, id, lock, waiting, held(by, others))


def line_grows(task: str, lock: str, waiting: int) -> None:
    text = (
        "%d tasks wait in line for lock %s of task %s: they are published faster than they run. Limit the "
        "line with max_waiting= and on_full=, skip calls with on_conflict='skip', or raise limit="
    )
    logger.warning(text, waiting, lock, task)


def store_chosen(services: Services) -> None:
    """Log once per process the store in which it looks for locks. A worker has it in its banner."""
    if services in _named_stores or services.worker:
        return
    _named_stores.add(services)
    url, prefix = services.store.url, services.settings.exclusive_prefix
    logger.info("locks are in %s (%s), exclusive_prefix %s", url, services.origin, prefix)


def elsewhere(sender: str, task: str, effect: str, url: str, prefix: str) -> None:
    text = (
        "publisher %s of task %s looks for locks in another store than this worker, or in one that has lost "
        "its data since: %s. Set the store and namespace of this worker in all processes: "
        'exclusive_store = "%s", exclusive_prefix = "%s"'
    )
    logger.error(text, sender, task, effect, url, prefix)


def more_elsewhere(count: int) -> None:
    text = "%d more publishers look for locks in another store than this worker, as their messages say"
    logger.error(text, count)


def unreadable(error: UnreadableKey, count: int) -> None:
    text = "%s. Until then the reaper skips this key and no task can acquire it (damaged keys found: %d)"
    run_in_hub(logger.error, text, error, count)


def stepped_aside(key: str, id: str) -> None:
    text = (
        "Task [%s] steps aside in the line of lock %s: no worker accepted its offers. Start a worker that "
        "consumes its queue and has its task registered"
    )
    logger.warning(text, task_id(id), key)


def no_roster(path: str) -> None:
    text = (
        "the file %s is gone, in which a child of a pool lists the leases that its worker has to renew: they "
        "expire after their ttl. If this is such a child, restart the worker"
    )
    logger.error(text, path)


def queue_deleted(id: str, queue: str, lock: str) -> None:
    text = "Task [%s] leaves the line of lock %s and does not run: its queue %s was deleted with its worker"
    logger.warning(text, id, lock, queue)


def message_gone(key: str, id: str) -> None:
    text = "Task [%s] is lost: another program deleted its message from the line of lock %s. Publish it again"
    run_in_hub(logger.error, text, task_id(id), key)


def recovered(task: str, id: str, lock: str, deaths: int) -> None:
    text = (
        "Task %s[%s] was recovered under lock %s: the lease of its run expired, since its worker died or was "
        "cut off (%d so far)"
    )
    logger.warning(text, task, id, lock, deaths)


def gave_up(services: Services, task: str, id: str, lock: str, deaths: int) -> None:
    text = (
        "Task %s[%s] is given up: %d times its worker died, or was cut off, while it ran under lock %s. It "
        "ends as FAILURE and its lock goes on: find out whether its body uses too much memory or crashes the "
        "process"
    )
    logger.error(text, task, id, deaths, lock)
    events.send(services, "lock-task-gave-up", uuid=id, name=task, lock=lock, deaths=deaths)


def forged(key: str, id: str) -> None:
    text = (
        "the stored message of %r in the line of lock %r was removed and not published: it has no signature "
        "of this exclusive_secret for this id and key. It was stored by a process without the secret, or is "
        "forged"
    )
    run_in_hub(logger.error, text, id, key)


def unsigned(task: str, sender: str) -> None:
    text = (
        "a message of task %s from publisher %r has a celery-exclusive header without a valid signature: "
        "such headers are ignored, and their keys computed here. Set the same exclusive_secret and "
        "exclusive_prefix on the publisher"
    )
    logger.warning(text, task, sender)


def store_wait(task: str, id: str, error: Exception) -> None:
    logger.warning("Task %s[%s] waits for its lock's store: %s", task, id, error)


def message_requeued(services: Services, task: str, id: str, lock: str, error: Exception) -> None:
    text = "the message of task %s[%s] goes back to the broker: its lock's store does not answer: %s"
    logger.error(text, task, id, error)
    events.send(services, "lock-message-requeued", uuid=id, name=task, lock=lock, reason=str(error))


def runs_without_lease(services: Services, task: str, id: str, lock: str, error: Exception) -> None:
    text = (
        "Task %s[%s] runs without lock %s, as on_store_error='allow' says, and another task may run at the "
        "same time: %s"
    )
    logger.error(text, task, id, lock, error)
    events.send(services, "lock-without-lease", uuid=id, name=task, lock=lock, reason=str(error))


def data_lost(services: Services, restored: int) -> None:
    url = services.store.url
    text = (
        "store %s has lost its data: the tasks that waited in line are lost, and others may have run at the "
        "same time as the holder of a lock. %d of this worker's leases were restored. Publish the lost tasks "
        "again"
    )
    run_in_hub(logger.error, text, url, restored)
    events.send(services, "lock-data-lost", store=url, restored=restored)


def cannot_start(error: Exception) -> None:
    logger.critical("the worker does not start: %s", error)


def trouble(what: str, error: BaseException) -> None:
    logger.warning("%s: %s", what, error)


def releases_dropped(key: str, count: int) -> None:
    text = (
        "leases that could not be released: %d, the first on key %s. They expire after their ttl or "
        "queued_ttl; `celery -A proj locks release KEY` releases one at once"
    )
    logger.warning(text, count, key)


def gave_up_waiting(lock: str, seconds: float | None, by: Sequence[Owner], others: int) -> str:
    """Describe a wait: "waited for lock <key> held by <task id> for 31.0s, and gave up after 30 s".

    `seconds` is None if the code of this worker has no `give_up_after` any more.
    """
    owners = f" {held(by, others)}" if by else ""  # it may be free by now
    after = "" if seconds is None else f" after {seconds:g} s"
    return f"waited for lock {lock}{owners}, and gave up{after} (give_up_after)"


def held(by: Sequence[Owner], others: int = 0) -> str:
    """Describe the owners of a lock, and the number of others: "held by <task id> for 1.5s and 2 more"."""
    if not by:
        return "held by an owner that the store does not name"
    owner, others = by[0], len(by) - 1 + others
    what = f"held by {task_id(owner.id)} for {owner.age / SECOND:.1f}s"
    if owner.phase == "offered":
        what = f"offered to {task_id(owner.id)}"
    return f"{what} and {others} more" if others else what
