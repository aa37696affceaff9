"""Tasks that are queued once: until they have finished, until they begin, or for a while."""

from __future__ import annotations

from typing import Any

from celery import Task, group

from celery_exclusive import DuplicateTask, Exclusive, Unique
from tests.worker.accepting import Accepting
from tests.worker.shop import act, app, doors, journal, noted, task
from tests.worker.shop_endings import WAYS, Passing

__all__ = ["app"]


def body(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag


@task(unique=Unique("key"))
def once(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return body(self, key, tag, hold)


@task(unique=Unique("key", on_conflict="raise"))
def strict(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return body(self, key, tag, hold)


@task(unique=Unique("key", until="started"))
def queued(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return body(self, key, tag, hold)


@task(unique=Unique("key", period=12))
def seldom(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return body(self, key, tag, hold)


@task(unique=Unique("key", until="started"), exclusive=Exclusive("key"))
def latest(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return body(self, key, tag, hold)


@task(unique=Unique("key"), exclusive=Exclusive("key"))
def both(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return body(self, key, tag, hold)


@task(
    Request=Accepting,
    unique=Unique("key"),
    max_retries=1,
    autoretry_for=(Passing,),
    retry_kwargs={"countdown": 0},
)
def end(self: Task, key: str, tag: str = "", how: str = "return", hold: bool = False) -> str:
    """It ends as it is told the first time, and then returns."""
    is_first = not journal.events("start", id=self.request.id)
    act(self, key, tag, hold=hold)
    if is_first or how == "retries-exhausted":
        WAYS[how](self)
    return tag


@task(unique=Unique("key"))
def patient(self: Task, key: str, tag: str = "") -> str:
    """Its first attempt is retried after ten seconds."""
    act(self, key, tag)
    if not self.request.retries:
        raise self.retry(countdown=10)
    return tag


def act_twice(task: Task, key: str, tag: str, *, hold: bool) -> str:
    """The run with the tag "first" is retried at once."""
    act(task, key, tag, hold=hold)
    if tag == "first" and not task.request.retries:
        raise task.retry(countdown=0)
    return tag


@task(unique=Unique("key", until="started"))
def twice(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return act_twice(self, key, tag, hold=hold)


@task(unique=Unique("key", period=600))
def twice_a_period(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return act_twice(self, key, tag, hold=hold)


@task(unique=Unique("key", until="started"))
def page(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    """The first page is replaced by the second."""
    act(self, key, tag, hold=hold)
    if tag == "first":
        raise self.replace(page.s(key, "second"))
    return tag


@task(unique=Unique("key"))
def other(self: Task, key: str, tag: str = "") -> str:
    """It is replaced by a task with another key."""
    act(self, key, tag)
    raise self.replace(seldom.s(key, tag))


@task(unique=Unique("key"))
def again(self: Task, key: str, tag: str = "", bypass: bool = False) -> str:
    """It publishes itself from inside its body."""
    options: dict[str, Any] = {"unique": None} if bypass else {}
    try:
        again.apply_async((key, "inside"), **options)
    except DuplicateTask as error:
        noted("refused", self, tag, why=str(error), existing_id=error.existing_id)
    return body(self, key, tag)


@task(unique=Unique("key", on_store_error="allow"))
def careless(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return body(self, key, tag, hold)


@task(unique=Unique("key"))
def unsent(self: Task, key: str, tag: str = "") -> str:
    """Its retry goes to a broker that is not there."""
    act(self, key, tag)
    if tag == "retried":
        with app.connection("redis://127.0.0.1:1/0") as nowhere:
            try:
                self.retry(countdown=5, connection=nowhere, retry=False)
            finally:
                noted("kept", self, tag, by=self.lock_state(key).unique_holder.task_id)
    elif tag == "moved":
        with app.connection("redis://127.0.0.1:1/0") as nowhere:
            self.retry(args=(f"{key} elsewhere", tag), countdown=5, connection=nowhere, retry=False)
    return tag


class Fussy(app.Task):  # type: ignore[misc, name-defined]
    """Fails before its body, though that is not to be entered."""

    abstract = True

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        if args[1] == "fussy":
            raise KeyError(args[1])


@task(base=Fussy, unique=Unique("key"), exclusive=Exclusive("key", on_conflict="skip"))
def fussy(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return body(self, key, tag, hold)


@task(unique=Unique("key", ttl=600), exclusive=Exclusive("key", ttl=9, order="arrived"))
def outlived(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    """The lock of a dead worker is free before its unique key."""
    return body(self, key, tag, hold)


class Lingering(app.Task):  # type: ignore[misc, name-defined]
    """Its hook goes on when the body has ended."""

    abstract = True

    def on_success(self, *_: Any) -> None:
        journal.write("hook")
        doors.blpop(["door:hook"], timeout=100)


@task(base=Lingering, unique=Unique("key"))
def lingering(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return body(self, key, tag, hold)


@task(unique=Unique(key="common"))
def left(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return body(self, key, tag, hold)


@task(unique=Unique(key="common"))
def right(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    return body(self, key, tag, hold)


# Members of canvases


@task(unique=Unique("key"))
def append(self: Task, so_far: Any = None, *, key: str, tag: str, hold: bool = False) -> list[Any]:
    act(self, key, tag, hold=hold)
    return [*(so_far if isinstance(so_far, list) else [so_far] if so_far else []), tag]


@task(unique=Unique("key", skip_result=0))
def number(self: Task, n: int, key: str, hold: bool = False) -> int:
    act(self, key, str(n), hold=hold)
    return n


@task()
def total(self: Task, numbers: list[int], tag: str = "total") -> int:
    act(self, "", tag)
    return sum(numbers)


@task(unique=Unique("key"))
def become(self: Task, key: str, tag: str = "", others: bool = False) -> Any:
    """Replaces itself by a call of its own, or by a chord with its own key in it."""
    act(self, key, tag)
    if tag == "first" and others:
        raise self.replace(group(number.s(n, key=f"{key}{n}") for n in range(3)) | total.s())
    if tag == "first":
        raise self.replace(become.s(key, "second").set(queue="side"))
    return tag


@task()
def linked(self: Task, result: Any) -> None:
    noted("linked", self, "", result=result)


def ends_slowly(self: Task, *_: Any) -> None:
    """Hold a run whose retry is sent, and whose end is not told yet."""
    noted("sent", self, "retry")
    doors.blpop("door:end", 60)


@task(unique=Unique("key"), on_retry=ends_slowly)
def slow_end(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    """Its retry goes to another queue."""
    act(self, key, tag, hold=hold)
    if not self.request.retries:
        raise self.retry(countdown=0, queue="later")
    return tag
