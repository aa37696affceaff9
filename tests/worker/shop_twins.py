"""Tasks that exist twice from one definition, plain and exclusive, and tell what Celery does with them."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

from celery import Task, signals
from celery.backends.redis import RedisBackend
from celery.exceptions import Ignore, Reject

from celery_exclusive import Exclusive
from tests.worker.accepting import TICKET, Accepting, wait_until_accepted
from tests.worker.journal import eventually
from tests.worker.shop import app, doors, journal, task

LOCK = Exclusive(key="{label}")
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "exclusive": {"exclusive": LOCK},
    "skip": {"exclusive": LOCK.replace(on_conflict="skip", skip_result=["a result"])},
}
"""Which twins there are. A label is one call's, and so is its lock."""
OWN_HEADERS = {"exclusive", TICKET}
NOT_TOLD = {*OWN_HEADERS, "_children", "properties", "hostname", "origin"}
TIMES = {"eta", "expires"}


# What is told


def tell(what: str, id: str | None, request: Any = None, **details: Any) -> None:
    """Put on the record what was called, where, for which attempt, and with what."""
    in_parent = os.getpid() == app.main_pid and threading.current_thread() is threading.main_thread()
    attempt = [getattr(request, name, None) or 0 for name in ("retries", "replaced_task_nesting")]
    told = {
        name: value if isinstance(value, (bool, dict, list)) else repr(value)
        for name, value in details.items()
    }
    journal.write(what, id=id, where="parent" if in_parent else "child", attempt=attempt, told=told)


def visible(request: Any) -> dict[str, str]:
    """All that a task's author can see of a request, but for our header and what differs by itself."""
    seen = {name: value for name, value in vars(request).items() if name not in NOT_TOLD}
    own = seen.get("headers") or {}
    headers = {name: value for name, value in own.items() if name not in OWN_HEADERS}
    return {
        name: repr(headers if name == "headers" else bool(value) if name in TIMES else value)
        for name, value in seen.items()
    }


class Told(RedisBackend):  # type: ignore[misc]
    """A result backend that tells what it is given to keep, and to count."""

    def store_result(
        self, task_id: str, result: Any, state: str, traceback: Any = None, request: Any = None, **more: Any
    ) -> Any:
        told = None if state == "STARTED" else result
        tell("stored", task_id, request, state=state, result=told, traceback=bool(traceback))
        return super().store_result(task_id, result, state, traceback, request=request, **more)

    def on_chord_part_return(self, request: Any, state: str, result: Any, *more: Any, **options: Any) -> Any:
        tell("chord part", request.id, request, state=state, result=result)
        return super().on_chord_part_return(request, state, result, *more, **options)


app.loader.override_backends = {"redis": f"{__name__}:Told"}


def _tell_of(name: str, *fields: str) -> None:
    def receive(sender: Any = None, **given: Any) -> None:
        request = given.get("request")
        if request is None or isinstance(request, dict):
            request = getattr(sender, "request", None)
        id = given.get("task_id") or getattr(request, "id", None)
        is_there = {field: bool(given.get(field)) for field in ("einfo", "traceback") if field in given}
        details = {field: given.get(field) for field in fields}
        tell(name, id, getattr(request, "_context", request), **details, **is_there)

    getattr(signals, name).connect(receive, weak=False)


@signals.worker_init.connect(weak=False)
def _begin_to_tell(**_: Any) -> None:
    """Tell what happens in a worker, and not in the tests' own process, where this app runs no task."""
    app.main_pid = os.getpid()
    _tell_of("task_received")
    _tell_of("task_prerun")
    _tell_of("task_postrun", "state", "retval")
    _tell_of("task_success", "result")
    _tell_of("task_failure", "exception")
    _tell_of("task_retry", "reason")
    _tell_of("task_revoked", "terminated", "signum", "expired")
    _tell_of("task_internal_error", "exception")
    _tell_of("task_rejected", "exc")
    _tell_of("task_unknown", "name")


class Twin(app.Task):  # type: ignore[name-defined, misc]
    """Tells of every hook."""

    abstract = True
    max_retries = 2
    default_retry_delay = 0

    def before_start(self, task_id: str, *more: Any) -> None:
        tell("before_start", task_id, self.request)
        super().before_start(task_id, *more)

    def on_success(self, retval: Any, task_id: str, *more: Any) -> None:
        tell("on_success", task_id, self.request, result=retval)
        super().on_success(retval, task_id, *more)

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        tell("on_failure", task_id, self.request, exception=exc, einfo=bool(einfo))
        super().on_failure(exc, task_id, args, kwargs, einfo)

    def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        tell("on_retry", task_id, self.request, exception=exc, einfo=bool(einfo))
        super().on_retry(exc, task_id, args, kwargs, einfo)

    def on_replace(self, sig: Any) -> Any:
        tell("on_replace", self.request.id, self.request)
        return super().on_replace(sig)

    def after_return(self, status: str, retval: Any, task_id: str, *more: Any) -> None:
        tell("after_return", task_id, self.request, state=status, result=retval)
        super().after_return(status, retval, task_id, *more)


class Called(Twin):
    """With a call of its own, too."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tell("__call__", self.request.id, self.request)
        return super().__call__(*args, **kwargs)


class Doomed(Twin):
    abstract = True
    Request = Accepting


# What they do


def body(self: Any, how: str, label: str) -> Any:
    tell("body", self.request.id, self.request, seen=visible(self.request))
    is_first = doors.incr(f"runs:{self.request.id}") == 1
    if self.request.retries and not isinstance(self, Doomed):
        wait_for_former(self.request)
    if isinstance(self, Doomed):
        wait_until_accepted(self)
    return HOW[how](self, label, is_first)


def wait_for_former(request: Any) -> None:
    """Plain Celery publishes a retry before it stores RETRY: else that might be stored last."""
    eventually(lambda: len(journal.events("task_retry", id=request.id)) >= request.retries, "the former end")


def _raise(error: BaseException) -> Any:
    raise error


def _retry(self: Any, **options: Any) -> Any:
    if self.request.retries < 2:
        raise self.retry(**options)
    return self.request.retries


def _call_itself(self: Any, label: str) -> str:
    """Direct calls inside the body: Celery makes each a request of its own."""
    for _ in range(2):
        self("be called", label=label)
    return _be_called(self)


def _be_called(self: Any) -> str:
    tell("called", self.request_stack.stack[0].id, seen=visible(self.request))
    return "called"


class Stubborn(Exception):
    """It cannot be pickled."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__("stubborn")


HOW: dict[str, Any] = {
    "return": lambda self, label, is_first: ["a result"],
    "call itself": lambda self, label, is_first: _call_itself(self, label),
    "be called": lambda self, label, is_first: _be_called(self),
    "raise": lambda self, label, is_first: _raise(KeyError("a key")),
    "raise what cannot be pickled": lambda self, label, is_first: _raise(Stubborn(1, 2)),
    "return what cannot be stored": lambda self, label, is_first: object,
    "retry": lambda self, label, is_first: _retry(self, countdown=0),
    "retry later": lambda self, label, is_first: _retry(self, countdown=0.3, exc=KeyError("later")),
    "retry in vain": lambda self, label, is_first: self.retry(countdown=0),
    "retry an error in vain": lambda self, label, is_first: self.retry(countdown=0, exc=KeyError("x")),
    "ignore": lambda self, label, is_first: _raise(Ignore("why")),
    "reject": lambda self, label, is_first: _raise(Reject("why", requeue=False)),
    "requeue": lambda self, label, is_first: _raise(Reject("why", requeue=True)) if is_first else "again",
    "replace": lambda self, label, is_first: self.replace(self.s("return", label=label)),
    "replace by a chain": lambda self, label, is_first: self.replace(
        self.s("return", label=label) | steady.s(label=label)
    ),
    "sleep": lambda self, label, is_first: time.sleep(60),
    "be terminated": lambda self, label, is_first: (
        self.app.control.revoke(self.request.id, terminate=True),
        time.sleep(60),
    ),
    "die": lambda self, label, is_first: os.kill(os.getpid(), signal.SIGKILL) if is_first else "again",
    "exit": lambda self, label, is_first: os._exit(3) if is_first else "again",
    "system exit": lambda self, label, is_first: _raise(SystemExit(4)),
}


def twins(name: str, base: type = Twin, **options: Any) -> None:
    """Make a task of every kind, called `plain_name`, `exclusive_name`, and so on."""
    for kind, lock in KINDS.items():
        task(name=f"{__name__}.{kind}_{name}", base=base, **lock, **options)(body)


twins("usual")
twins("called", Called)
twins("auto", autoretry_for=(KeyError,), retry_kwargs={"countdown": 0})
twins("auto_called", Called, autoretry_for=(KeyError,), retry_kwargs={"countdown": 0})
twins("throws", throws=(KeyError,))
twins("tracked", track_started=True)
twins("ignored", ignore_result=True)
twins("ignored_errors", ignore_result=True, store_errors_even_if_ignored=True, track_started=True)
twins("soft", soft_time_limit=6)
twins("hard", time_limit=6)
twins("doomed", Doomed, track_started=True, reject_on_worker_lost=False)
twins("doomed_again", Doomed, reject_on_worker_lost=True)
twins("doomed_retried", Doomed, retry_on_worker_lost=True)
twins("unacked", acks_on_failure_or_timeout=False)


@task()
def steady(self: Task, *args: Any, label: str) -> Any:
    """What comes beside or after a twin."""
    tell("steady", label, got=list(args))
    return ["steady", *args]


@task(bind=False)
def errback(request: Any, exc: Any, traceback: Any, label: str = "") -> None:
    tell("errback", label, exception=exc, traceback=bool(traceback), seen=visible(request))


@task(bind=False)
def errback_by_id(id: str, label: str = "") -> None:
    tell("errback by id", label, got=id)
