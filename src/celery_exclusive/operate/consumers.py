"""Compares the workers that answer over the broker with this process: queues, options of tasks, and store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from celery_exclusive.display import escaped, printable
from celery_exclusive.errors import docs_page
from celery_exclusive.messages.namespace import own_broker
from celery_exclusive.operate.check import Check
from celery_exclusive.operate.patience import NoAnswer, ask_broker
from celery_exclusive.operate.states import key_states, tasks_with_options
from celery_exclusive.worker.steps import own_record

if TYPE_CHECKING:
    from celery_exclusive.services import Services
    from celery_exclusive.stores.workers import WorkerRecord

_WAIT: Final = 1.0
"""Seconds in which workers have to answer."""
_ROUTE: Final = ("queue", "exchange", "routing_key")
"""The attributes of a task that decide its queue."""
_LINES: Final = 1_000
"""The most keys whose lines are looked at."""
_ANY: Final = "*"
"""Stands for each word: only the broker knows which messages such a queue gets."""
_OPTIONS: Final = ("exclusive", "unique")
"""The attributes of a task that are its options."""


@dataclass(frozen=True, slots=True)
class Consumers:
    """The workers that have answered, by their names.

    `queues`: with their routing keys. `options`: of each task, as a text. `have_secret`: as far as it is
    said.
    """

    queues: Mapping[str, set[str]]
    options: Mapping[str, Mapping[str, str]]
    pids: Mapping[str, int]
    have_secret: Mapping[str, bool]

    @classmethod
    def ask(cls, app: Any) -> Consumers:
        """Ask all workers. A transport without broadcast raises NotImplementedError or its own error."""
        if not has_broadcast(app):
            raise NotImplementedError("it has no fanout exchanges")
        queues = app.control.inspect(timeout=_WAIT).active_queues() or {}
        found: tuple[Any, Any] = {}, {}
        if queues:
            known = app.control.inspect([*queues], timeout=_WAIT)  # comes back with the last answer
            found = known.registered(*_OPTIONS) or {}, known.stats() or {}
        return cls(
            {worker: {name for queue in its for name in _names_of(queue)} for worker, its in queues.items()},
            {worker: dict(_name_and_options(text) for text in its) for worker, its in found[0].items()},
            {worker: its["pid"] for worker, its in found[1].items()},
            {
                worker: its["celery_exclusive"]["has_secret"]
                for worker, its in found[1].items()
                if "celery_exclusive" in its
            },
        )

    def may_take(self, queue: str) -> bool:
        """Whether a worker that has answered consumes, or may consume, what has this routing key."""
        return any(not queue or not {queue, _ANY}.isdisjoint(its) for its in self.queues.values())

    def compare(self, services: Services) -> Iterator[Check]:
        if not self.queues:
            text = "no worker has answered within a second"
            yield Check("queues", "warning", text, "start a worker, or look at its log if one runs")
            return
        yield from self._compare_queues(services)
        yield from self._compare_options(services)
        yield from self._compare_secret(services)

    def compare_store(self, services: Services) -> Iterator[Check]:
        """Yield a finding about each worker that takes tasks with options and uses no locks, or others."""
        if not (self.pids and services.store.capabilities.listing):
            return
        records = [it for its in services.store.workers().values() for it in its]
        # In a container each worker has the pid 1, also the one before it: the newest counts.
        known = {(it.nodename, it.pid): it for it in sorted(records, key=lambda it: it.since)}
        queues = {queue_of(services.app, task) for task in tasks_with_options(services)}
        strangers = [
            (worker, taken[0])
            for worker, pid in self.pids.items()
            if (worker, pid) not in known and (taken := sorted(self.queues[worker] & queues))
        ]
        for worker, queue in strangers:
            text = (
                f"{printable(worker)} consumes queue {printable(queue)}, and is no worker of this store: its "
                "tasks may run beside tasks of other workers"
            )
            fix = "give it the exclusive_store and exclusive_prefix of the others, and install() for its app"
            yield Check("workers", "problem", text, fix)
        if not strangers:
            yield Check("workers", "ok", "all that have answered use this store and exclusive_prefix")
        yield from self._compare_releases(known)

    def compare_waiting(self, services: Services) -> Iterator[Check]:
        """Yield a finding about each queue of waiting tasks that no worker consumes."""
        if not (self.queues and services.store.capabilities.line):
            return
        waited_for = (line.key for line in services.store.lines() if line.all_waiting)
        keys = set(islice(waited_for, _LINES))
        states = [state for state in key_states(services, keys) if state.all_waiting and state.queue]
        lost = [state for state in states if not self.may_take(state.queue)]
        for queue in sorted({state.queue for state in lost}):
            its = [state for state in lost if state.queue == queue]
            count = sum(state.all_waiting for state in its)
            seen = f"{count} tasks wait in lines of it"
            if len(keys) == _LINES:
                seen = f"in the first {_LINES:,} lines {seen}"
            text = f"no worker consumes queue {printable(queue)}, and {seen}"
            text += f", as for {escaped(its[0].key)}"
            fix = f"start a worker with -Q {printable(queue)}, or see {docs_page('how-to/operate')}"
            yield Check("lines", "warning", text, fix)
        if not lost:
            lines = f"the first {_LINES:,}" if len(keys) == _LINES else f"{len(states)}"
            yield Check("lines", "ok", f"the queues of {lines} lines have workers")

    def _compare_queues(self, services: Services) -> Iterator[Check]:
        without = defaultdict[str, list[str]](list)
        for task in tasks_with_options(services):
            queue = queue_of(services.app, task)
            if queue and not self.may_take(queue):
                without[queue].append(task.name)
        for queue, names in without.items():
            text = f"no worker consumes queue {printable(queue)}, to which {_first(names)} are sent"
            fix = f"start a worker with -Q {printable(queue)}, or correct task_routes"
            yield Check("queues", "warning", text, fix)
        if not without:
            number = len(self.queues)
            who = "1 worker consumes" if number == 1 else f"{number} workers consume"
            text = f"{who} the queues to which this process sends tasks with options"
            yield Check("queues", "ok", text)

    def _compare_options(self, services: Services) -> Iterator[Check]:
        """Compare the tasks that each worker gets with the tasks here: this process stands for publishers."""
        own = [(it.name, _options_of(it), queue_of(services.app, it)) for it in services.app.tasks.values()]
        found = list[str]()
        for worker, theirs in self.options.items():
            told = printable(worker)
            mine = {name: text for name, text, queue in own if queue in self.queues[worker]}
            if unknown := [name for name, text in mine.items() if text and name not in theirs]:
                found.append(f"{told} consumes the queue of {_first(unknown)}, and does not know the task")
            if others := [name for name, text in mine.items() if theirs.get(name, text) != text]:
                here, there = (printable(its[others[0]]) or "no options" for its in (mine, theirs))
                found.append(f"{told} has {there} for {_first(others)}, and this process {here}")
        fix = f"run one release of the code everywhere: see {docs_page('how-to/deploy')}"
        yield from (Check("options", "warning", text, fix) for text in found)
        if not found:
            yield Check(
                "options", "ok", "the workers have the options of this process for the tasks that they get"
            )

    def _compare_releases(self, known: Mapping[tuple[str, int], WorkerRecord]) -> Iterator[Check]:
        """Compare the releases of the workers that have answered, by their records in the store."""
        living = [known[name] for name in self.pids.items() if name in known]
        releases = {own_record("").release, *(it.release for it in living)}
        if len(releases) > 1:
            names = ", ".join(sorted(releases))
            text = f"this process and the workers that have answered have releases {names}"
            fix = f"run one release everywhere: see {docs_page('how-to/deploy')}"
            yield Check("releases", "warning", printable(text), fix)

    def _compare_secret(self, services: Services) -> Iterator[Check]:
        """Compare whether there is a secret. A secret itself is compared with none."""
        here = services.signer.is_on
        others = [worker for worker, has_secret in self.have_secret.items() if has_secret != here]
        for worker in others:
            one, other = ("no exclusive_secret", "one") if here else ("an exclusive_secret", "none")
            text = f"{printable(worker)} has {one}, and this process has {other}"
            fix = f"set it to the same string in all processes: see {docs_page('how-to/security')}"
            yield Check("secret", "warning", text, fix)
        if self.have_secret and not others:
            has = "have an" if here else "have no"
            yield Check("secret", "ok", f"the workers and this process {has} exclusive_secret")


def has_broadcast(app: Any) -> bool:
    """Whether workers can be asked over this broker, as they ask themselves before they listen."""
    with app.connection_for_write() as connection:  # which is only made, and not connected
        return bool(connection.supports_exchange_type("fanout"))


def connect(services: Services) -> None:
    """Connect to the broker. Each transport has errors of its own."""

    def connect() -> None:
        with services.app.connection_for_read() as connection:
            connection.ensure_connection(max_retries=1, interval_start=0)

    ask_broker(services, connect)


def ask_consumers(services: Services) -> Consumers | None:
    """Ask all workers what they consume. None: they cannot be asked over this broker."""
    try:
        connect(services)
    except NoAnswer:
        raise
    except Exception as error:
        name = printable(own_broker(services))
        raise NoAnswer(f"broker {name} does not answer ({type(error).__name__})") from error
    try:
        return ask_broker(services, lambda: Consumers.ask(services.app))
    except NoAnswer:
        raise
    except Exception:  # noqa: BLE001 - some transports have no broadcast
        return None


def _names_of(queue: Mapping[str, Any]) -> Iterator[str]:
    yield queue["name"]
    if key := queue.get("routing_key"):
        yield key
    if (queue.get("exchange") or {}).get("type") in ("topic", "headers"):
        yield _ANY


def queue_of(app: Any, task: Any) -> str | None:
    """Return the queue of a task's calls. None: its route names an exchange, or depends on the call."""
    named = {name: value for name in _ROUTE if (value := getattr(task, name, None)) is not None}
    try:
        queue = app.amqp.router.route(named, task.name).get("queue")
    except Exception:  # noqa: BLE001 - a router of the project, which gets no arguments here
        return None
    return str(getattr(queue, "name", queue)) if queue else None


def _options_of(task: Any) -> str:
    given = {name: getattr(task, name, None) for name in _OPTIONS}
    return " ".join(f"{name}={option}" for name, option in given.items() if option is not None)


def _name_and_options(text: str) -> tuple[str, str]:
    name, _, options = text.partition(" [")
    return name, options.removesuffix("]")


def _first(names: Sequence[str]) -> str:
    return printable(names[0]) + (f" and {len(names) - 1} more tasks" if names[1:] else "")
