"""Log lines: the one module that reports events to operators, in the form of Celery's own log lines.

Every record is one printable line, since other programs wrote the keys, ids and names in it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from celery_exclusive import events
from celery_exclusive.core.claim import task_id
from celery_exclusive.core.operations import Owner
from celery_exclusive.core.records import SECOND
from celery_exclusive.display import OneLine
from celery_exclusive.errors import UnreadableKey, docs_page
from celery_exclusive.system.threads import run_in_hub

if TYPE_CHECKING:
    from celery_exclusive.options.option import Option
    from celery_exclusive.services import Services


logger = logging.getLogger("celery_exclusive")
logger.addFilter(OneLine())
_named_stores: WeakSet[Services] = WeakSet()
"""The apps of this process whose store is in the log."""
_blocked_loops: WeakSet[Services] = WeakSet()
"""The apps of this process whose calls were warned of, since they block an event loop."""


def lock_of_no_task(text: str, key: str) -> None:
    message = (
        "lock(%s) holds %s, and not the lock of the task of this name: they exclude each other if the task "
        "has exclusive=Exclusive(key=%s)"
    )
    logger.warning(message, repr(text), key, repr(text))


def may_wait_for_itself(lock: str) -> None:
    text = (
        "lock %s was acquired by the thread that waits for it now, without wait=. If the same code should "
        "release it, it waits for ever: give both reentrant=True, or this one a wait="
    )
    logger.warning(text, lock)


def refuses_to_push(url: str, name: str) -> None:
    text = (
        "store %s refuses to push onto list %s in the call that acquires a unique key: its user may have no "
        "rights there, or it is no list. From now on messages of this process follow in a second call"
    )
    logger.warning(text, url, name)


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


def skipped_step(task: str, option: Option) -> None:
    text = (
        "task %s is a step of a canvas (%s=%s): if its key is held it fails, and its canvas with it, since "
        "its next step must not begin with the result of a skip. A duplicate waits for the task that holds "
        "its key, and has its result, with unique=Unique() until that has finished, a result backend that "
        "others can read, and a store with lines. Or say with skip_result= what the next step gets"
    )
    logger.warning(text, task, option.attribute, repr(option))


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


def blocks_a_loop(services: Services) -> None:
    """Warn once per process of a call in a coroutine, which waits for the store."""
    if services not in _blocked_loops:
        _blocked_loops.add(services)
        logger.warning(
            "a call of a task asks the store %s, and blocks the event loop of its thread meanwhile: write "
            "await asyncio.to_thread(task.delay, ...)",
            services.store.url,
        )


def elsewhere(sender: str, task: str, key: str, url: str, prefix: str) -> None:
    text = (
        "publisher %s of task %s looks for locks in another store than this worker, or in one that has lost "
        "its data since: no worker here releases key %s there, so later calls are dropped, or wait in a line "
        "that stands still. Set the store and namespace of this worker in all processes: "
        'exclusive_store = "%s", exclusive_prefix = "%s"'
    )
    logger.error(text, sender, task, key, url, prefix)


def unreadable(error: UnreadableKey, count: int) -> None:
    text = "%s. Until then the reaper skips this key and no task can acquire it (damaged keys found: %d)"
    run_in_hub(logger.error, text, error, count)


def no_roster(path: str) -> None:
    text = (
        "the file %s is gone, in which a child of a pool lists the leases that its worker has to renew. If "
        "this is such a child, its tasks with options fail: restart the worker"
    )
    logger.error(text, path)


def not_signed(key: str, id: str) -> None:
    text = (
        "the stored message of %r in the line of lock %r was set aside and not published: it has no "
        "signature of this exclusive_secret for this id and key. It was stored by a process without the "
        "secret, or is forged. Look at it with `locks show`, and give its publisher the secret: %s says how "
        "it runs all the same"
    )
    run_in_hub(logger.error, text, id, key, docs_page("how-to/security"))


def unsigned(task: str, sender: str) -> None:
    text = (
        "a message of task %s from publisher %r has a celery-exclusive header without a valid signature: "
        "such headers are ignored, and their keys computed here. Set the same exclusive_secret and "
        "exclusive_prefix on the publisher"
    )
    logger.warning(text, task, sender)


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


def dropped_by_operator(
    services: Services, dropped: int, first: Mapping[str, str], by: str, reason: str, file: str
) -> None:
    """Log a drop, and tell monitors. `first`: the first task that was dropped of each lock."""
    lock, id = next(iter(first.items()))
    what = f"task {id} was" if dropped == 1 else f"{dropped} tasks (the first is {id}) were"
    line = f"line of lock {lock}" if len(first) == 1 else f"lines of {len(first)} locks (the first is {lock})"
    kept = f"saved in {file}" if file else "not saved"
    text = "%s dropped from the %s by %s%s, and %s"
    logger.warning(text, what, line, by, because(reason), kept)
    _audit(services, "lock-dropped", by, reason, dropped=dropped, locks=len(first), lock=lock, file=file)


def put_by_operator(services: Services, counts: Mapping[Any, int], by: str, reason: str, file: str) -> None:
    told = ", ".join(f"{outcome} {count}" for outcome, count in counts.items())
    logger.warning("tasks of the file %s were put back by %s%s: %s", file, by, because(reason), told)
    _audit(services, "lock-put", by, reason, **counts, file=file)


def adopted_by_operator(
    services: Services, owner: str, waiting: int, by: str, reason: str, *, drops: bool
) -> None:
    text = "the locks of prefix %s in %s, which belonged to broker %s, were %s by %s%s: %d tasks waited there"
    prefix, url = services.settings.exclusive_prefix, services.store.url
    done = "deleted" if drops else "adopted"
    logger.warning(text, prefix, url, owner, done, by, because(reason), waiting)
    _audit(services, "lock-adopted", by, reason, store=url, owner=owner, waiting=waiting, deleted=drops)


def because(reason: str) -> str:
    return f" ({reason})" if reason else ""


def _audit(services: Services, kind: str, by: str, reason: str, **fields: object) -> None:
    events.send_all(services, by, kind, [{"by": by, "reason": reason, **fields}])


def wrong_token(user: str, address: str) -> None:
    text = "the page of locks: a visitor from %s with the name %s has shown a wrong token"
    logger.warning(text, address, user)


def trouble(what: str, error: BaseException) -> None:
    logger.warning("%s: %s", what, error)


def failed(what: str, error: Exception, traceback: Exception | None) -> None:
    """Log the first failure of a repeated activity, with its traceback unless the error explains itself."""
    logger.warning("%s failed; retrying: %s", what, error, exc_info=traceback)


def still_fails(what: str, seconds: float, error: Exception) -> None:
    logger.warning("%s has failed for %.0f s; retrying: %s", what, seconds, error)


def recovered(what: str, seconds: float) -> None:
    logger.info("%s recovered after %.0f s", what, seconds)


def releases_dropped(key: str, count: int) -> None:
    text = (
        "leases that could not be released: %d, the first on key %s. They expire after their ttl or "
        "queued_ttl; `celery -A proj locks release KEY` releases one at once"
    )
    logger.warning(text, count, key)


def gave_up_waiting(lock: str, seconds: float | None, by: Sequence[Owner], others: int) -> str:
    """Describe a wait: "waited for lock <key> held by <task id> for 31.0s, and gave up after 30 s"."""
    owners = f" {held(by, others)}" if by else ""  # it may be free by now
    after = "" if seconds is None else f" after {seconds:g} s"
    return f"waited for lock {lock}{owners}, and gave up{after} (give_up_after)"


def limited_by_operator(key: str, part: str, by: str, reason: str, change: str) -> None:
    of_part = f"part {part} of " if part else ""
    logger.warning("%slock %s was %s by %s%s", of_part, key, change, by, because(reason))


_CLOSED: Final = {
    "rate": "at its rate",
    "paused": "paused by an operator",
    "hold": "held back",
    "part": "at its limit for this part",
}


def _closed(owner: Owner) -> str:
    what = _CLOSED[owner.phase]
    return what if owner.opens_in is None else f"{what}: the next may start in {owner.opens_in:.1f}s"


def held(by: Sequence[Owner], others: int = 0) -> str:
    """Describe the owners of a lock, and the number of others: "held by <task id> for 1.5s and 2 more"."""
    if not by:
        return "held by an owner that the store does not name"
    owner, others = by[0], len(by) - 1 + others
    if owner.is_closed:
        return _closed(owner)
    what = f"held by {task_id(owner.id)} for {owner.age / SECOND:.1f}s"
    if owner.phase == "offered":
        what = f"offered to {task_id(owner.id)}"
    return f"{what} and {others} more" if others else what
