"""Examines an installation: settings, broker, store, workers, and what each finding asks a person to do."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from secrets import token_hex
from shlex import quote
from statistics import median
from typing import TYPE_CHECKING, Final

from celery.concurrency import get_implementation

from celery_exclusive.brokers import is_in_one_process
from celery_exclusive.core.claim import task_id
from celery_exclusive.core.records import SECOND
from celery_exclusive.display import duration, escaped, printable
from celery_exclusive.errors import ExclusiveError, docs_page, is_away
from celery_exclusive.messages.namespace import own_broker, refuse_other_owner
from celery_exclusive.operate.answers import command
from celery_exclusive.operate.check import Check
from celery_exclusive.operate.consumers import Consumers, connect
from celery_exclusive.operate.look import look
from celery_exclusive.operate.old_locks import old_locks
from celery_exclusive.operate.parts import has_parts, miscounted, parts_of
from celery_exclusive.operate.patience import NoAnswer, ask_broker, reach
from celery_exclusive.operate.results import result_of
from celery_exclusive.operate.room import Room
from celery_exclusive.operate.states import keys_of, tasks_with_options
from celery_exclusive.operate.trial import try_lock
from celery_exclusive.seams import probe
from celery_exclusive.stores.workers import FORGOTTEN_AFTER
from celery_exclusive.worker import checks

if TYPE_CHECKING:
    from celery_exclusive.services import Services
    from celery_exclusive.stores.base import Snapshot

_TRIPS: Final = 5
_APART: Final = 2.0
"""Seconds by which the clocks of the store and of this host may differ: `expires` and `eta` mean a host's."""
_PERIODS: Final = 10
"""Periods of the reaper without a sweep after which no worker sweeps."""
_NAMED: Final = 10
_ASKED: Final = 100
"""The most keys whose parts are looked at."""


def examine(services: Services) -> Iterator[Check]:
    """Yield the findings, first of all those that need no store. Only a lock of its own is changed."""
    yield from _guarded("settings", _settings, services)
    yield from _guarded("fast parts", _parts, services)
    yield from _guarded("order", _order, services)
    yield from (found := list(_guarded("broker", _broker, services)))
    consumers = None
    if found[-1].level == "ok" and not is_in_one_process(services.app.conf):
        try:
            consumers = ask_broker(services, lambda: Consumers.ask(services.app))
        except NoAnswer as error:
            yield Check("queues", "problem", str(error), "mend the broker: it answers some requests alone")
        except Exception as error:  # noqa: BLE001 - some transports have no broadcast
            yield Check("queues", "ok", f"workers cannot be asked over this broker: {_text_of(error)}")
    if consumers:
        yield from _guarded("queues", consumers.compare, services)
    yield from _guarded("results", _results, services)
    yield from _guarded("old locks", _old_locks, services)
    for name, check in _OF_STORE.items():
        found = list(_guarded(name, check, services))
        yield from found
        if any(finding.is_away for finding in found):
            return
    if consumers:
        yield from _guarded("workers", consumers.compare_store, services)
        yield from _guarded("lines", consumers.compare_waiting, services)


def _guarded(name: str, look: Callable[[Services], Iterator[Check]], services: Services) -> Iterator[Check]:
    try:
        yield from look(services)
    except ExclusiveError as error:
        yield Check(name, "problem", str(error), is_away=is_away(error))
    except Exception as error:  # noqa: BLE001 - an error of the project's settings hides no other finding
        yield Check(name, "problem", f"this cannot be examined: {_text_of(error)}")


def _text_of(error: Exception) -> str:
    return printable(f"{type(error).__name__}: {error}")


def _settings(services: Services) -> Iterator[Check]:
    services.installer.adopt_all()
    found = [*services.installer.unknown_tasks(), *checks.setting_warnings(services)]
    yield from (Check("settings", "warning", text) for text in found)
    checks.refuse_unfit(services, get_implementation(services.app.conf.worker_pool))
    count = len(tasks_with_options(services))
    if not found:
        have = "1 task has" if count == 1 else f"{count} tasks have"
        yield Check("settings", "ok", f"{have} options, which pool, broker and store can keep")


def _parts(services: Services) -> Iterator[Check]:
    probe.load("billiard", "celery", "kombu", "redis")
    probe.load_transport(services.app)
    yield from (Check("fast parts", "problem", text) for text in probe.refusals())
    yield from (Check("fast parts", "warning", text) for text in probe.warnings())
    if not services.settings.exclusive_fast:
        yield Check("fast parts", "ok", "exclusive_fast is False: all that only makes things faster is off")
        return
    yield Check("fast parts", "ok", probe.report()[0])


def _order(services: Services) -> Iterator[Check]:
    waits = [
        option
        for task in tasks_with_options(services)
        if (option := services.exclusive(task)) and option.has_line
    ]
    counts = Counter(services.order(option) for option in waits)
    if services.orders_calls:
        why = "broker and store are one Redis database, so calls that wait are ordered as they were published"
    elif services.has_one_place:
        why = "exclusive_max_waiting is set, so calls are ordered as they reach the store"
    else:
        why = "broker and store are not one Redis database, so calls are ordered as workers receive them"
    tasks = ", ".join(f"{order} for {count}" for order, count in sorted(counts.items()))
    yield Check("order", "ok", f"{why}, unless order= says otherwise. Tasks that wait: {tasks or 'none'}")


def _broker(services: Services) -> Iterator[Check]:
    app, name = services.app, printable(own_broker(services))
    if is_in_one_process(app.conf):
        yield Check("broker", "ok", f"{name} is the memory of one process, for tests")
        return
    try:
        connect(services)
    except Exception as error:  # noqa: BLE001 - each transport has its own errors
        text = str(error) if isinstance(error, NoAnswer) else f"{name} does not answer: {_text_of(error)}"
        yield Check("broker", "problem", text, "start it, or correct broker_url")
        return
    yield Check("broker", "ok", f"{name} answers")


def _results(services: Services) -> Iterator[Check]:
    """Ask for the result of a task that does not exist."""
    try:
        result_of(services, f"celery-exclusive doctor {token_hex(4)}")
    except NoAnswer as error:
        yield Check("results", "problem", str(error), "start it, or correct result_backend")
        return
    yield Check("results", "ok", "the result backend answers, or the app stores no results")


def _old_locks(services: Services) -> Iterator[Check]:
    for package, count in sorted(old_locks(services.app.conf).items()):
        fix = f"delete those that no task has any more: see {docs_page('how-to/migrate')}"
        yield Check("old locks", "warning", f"there are {count:,} locks of {package} in Redis", fix)


def _speed(services: Services) -> Iterator[Check]:
    store, times = services.store, list[float]()
    reach(services)  # connects
    for _ in range(_TRIPS):
        began = time.perf_counter()
        store.epoch()
        times.append(time.perf_counter() - began)
    where = f"{printable(store.url)} ({services.origin})"
    yield Check("store", "ok", f"{where} answers in {median(times) * 1000:.2g} ms (median of {_TRIPS})")
    try_lock(store)
    yield Check("store", "ok", "a lock was acquired and released")


def _clock(services: Services) -> Iterator[Check]:
    began = time.time()
    now = services.store.times().now / SECOND
    half = (time.time() - began) / 2
    apart = abs(began + half - now) - half
    text = f"the clocks of the store and of this host differ by {max(apart, 0):.1f} s"
    fix = "let a time service set both: expires, eta and give_up_after depend on the hosts' clocks, too"
    yield Check("clock", "warning", text, fix) if apart > _APART else Check("clock", "ok", text)


def _sweeps(services: Services) -> Iterator[Check]:
    store, period = services.store, services.settings.exclusive_reap_period
    if not store.capabilities.line:
        yield Check("sweeps", "ok", "this store needs no sweep: its leases expire by themselves")
        return
    now, swept = store.times()
    age = None if swept is None else max(now - swept, 0) / SECOND
    found = sorted((it for its in store.workers().values() for it in its), key=lambda it: -it.since)
    named = [f"{it} ({printable(it.host)}, release {printable(it.release)})" for it in found[:_NAMED]]
    more = [f"{len(found) - _NAMED} more"] if found[_NAMED:] else []
    workers = f"workers of the last day: {', '.join([*named, *more]) or 'none'}"
    if age is None or age > max(_PERIODS * period, _PERIODS):
        when = "no sweep is known" if age is None else f"the last sweep was {duration(age)} ago"
        text = f"{when}, so dead runs are not recovered, and offers do not end; {workers}"
        fix = "start a worker of this app, whose tasks have options, with this store and exclusive_prefix"
        yield Check("sweeps", "problem", text, fix)
    else:
        yield Check("sweeps", "ok", f"the last sweep was {duration(age)} ago; {workers}")


def _data(services: Services) -> Iterator[Check]:
    workers = [it for its in services.store.workers().values() for it in its]
    worker = max(workers, key=lambda it: it.lost, default=None)
    if worker and (ago := time.time() - worker.lost) < FORGOTTEN_AFTER / SECOND:
        text = f"{worker} noticed {duration(max(ago, 0))} ago that the store had lost its data"
        text += ": tasks that waited are lost"
        yield Check("data", "warning", text, f"publish them again; see {docs_page('reference/endings')}")
    else:
        yield Check("data", "ok", "no worker has noticed in the last day that the store lost its data")


def _owner(services: Services) -> Iterator[Check]:
    refuse_other_owner(services)
    prefix, broker = map(printable, (services.settings.exclusive_prefix, own_broker(services)))
    yield Check("owner", "ok", f"no other broker than {broker} keeps exclusive_prefix {prefix}")


def _aside(services: Services) -> Iterator[Check]:
    if not (services.store.capabilities.line and services.store.capabilities.listing):
        return
    aside = {line.key: line.aside for line in services.store.lines() if line.aside}
    if aside:
        text = f"{sum(aside.values()):,} tasks are aside, as for {escaped(next(iter(aside)))}"
        text += ": no worker accepts or publishes them, or they wait for their last chance"
        yield Check(
            "aside", "warning", text, "ask `celery -A proj locks why KEY` for each such key of `locks ls`"
        )
    else:
        yield Check("aside", "ok", "no task is aside")


def _limits(services: Services) -> Iterator[Check]:
    """Name limits of operators, which hide the code's, tasks that cost more than all, and wrong counters."""
    store = services.store
    if not (store.capabilities.line and store.capabilities.listing):
        return
    found = [(key, seen, Room.of(seen)) for key, seen in look(store).states]
    is_set = [it for it in found if it[1].is_set]
    for key, seen, room in is_set[:_NAMED]:
        text = f"{escaped(key)}: {'; '.join(room.lines())}"
        hides = room.hides if seen.all_waiting else ""
        text += f"; {hides}, and {seen.all_waiting:,} wait" if hides else ""
        is_warning = room.is_forgotten or hides
        yield Check("limits", "warning" if is_warning else "ok", text, command("locks", "resume", key))
    if not is_set:
        yield Check("limits", "ok", "no operator has set a limit")
    yield from _forgotten_parts(services, [(key, seen) for key, seen, _ in found if seen.terms.shut])
    dear = ((key, one, room) for key, seen, room in found for one in seen.line if one.cost > room.least)
    for key, one, room in islice(dear, _NAMED):
        text = f"{escaped(key)}: {printable(task_id(one.id))} in line costs {one.cost:,} units, and the key "
        text += f"allows {room.least:,}: it waits until nothing else runs or counts, and then runs alone"
        yield Check("costs", "warning", text, "lower its cost=, or raise limit= and rate=")
    busy = ((key, seen, room) for key, seen, room in found if seen.holders or seen.all_waiting)
    yield from islice(_other_rates(services, busy), _NAMED)
    for key, seen, _ in [it for it in found if has_parts(it[1])][:_ASKED]:
        for text in miscounted(store, key, seen):
            fix = "report it with this line; a key counts its parts anew when nothing of it runs or waits"
            yield Check("parts", "warning", f"{escaped(key)}: {text}", fix)


def _other_rates(services: Services, busy: Iterable[tuple[str, Snapshot, Room]]) -> Iterator[Check]:
    """Name the keys whose latest caller has given another rate than the tasks here have."""
    options = {task.name: services.exclusive(task) for task in tasks_with_options(services)}
    for key, seen, room in islice((it for it in busy if it[0][:1] == "x"), _ASKED):
        here = {name: it for name, it in options.items() if it and keys_of(services, name, [key])}
        if {it.rates for it in here.values()} <= {tuple((it.units, it.period) for it in seen.terms.active)}:
            continue
        kept = ", ".join(f"{rate.units:,} per {duration(rate.period)}" for rate in room.rates) or "no rate"
        said = ", ".join(f"{printable(name)} has rate={it.rate!r}" for name, it in [*here.items()][:_NAMED])
        text = f"{escaped(key)}: its latest caller gave {kept}, and here {said}: each call sets its own"
        fix = "give all tasks, and lock(), with this key one rate=, in all processes"
        yield Check("rates", "warning", text, fix)


def _forgotten_parts(services: Services, found: list[tuple[str, Snapshot]]) -> Iterator[Check]:
    """Name the parts that an operator paused long ago, and whose tasks wait."""
    store = services.store
    of_keys = ((key, part) for key, seen in found[:_ASKED] for part in parts_of(store, key, seen.now))
    forgotten = (it for it in of_keys if it[1].shut and it[1].room.is_forgotten)
    for key, part in islice(forgotten, _NAMED):
        text = f"{escaped(key)}: {part.text}; {part.shut:,} of its tasks wait"
        fix = command("locks", "resume", f"--part={quote(escaped(part.name))}", key)
        yield Check("limits", "warning", text, fix)


def _durability(services: Services) -> Iterator[Check]:
    found = services.store.check()
    yield from (Check("durability", "warning", text) for text in found)
    if not found:
        text = "the store can do its work, evicts no locks and is durable, as far as it says"
        yield Check("durability", "ok", text)


_OF_STORE: Final = {
    "store": _speed,
    "clock": _clock,
    "sweeps": _sweeps,
    "data": _data,
    "owner": _owner,
    "aside": _aside,
    "limits": _limits,
    "durability": _durability,
}
"""The checks that ask the store. The last sweep is read before the store is checked."""
