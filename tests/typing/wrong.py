"""Wrong values and names: a line ends with what mypy and pyright report of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery import Celery

from celery_exclusive import Debounce, Exclusive, Task, Unique, install, lock, locks, shared_task

if TYPE_CHECKING:
    from celery_exclusive.typing import Result

app = install(Celery("feeds"))

Exclusive(limit="4")  # arg-type, reportArgumentType
Exclusive(on_conflict="drop")  # arg-type, reportArgumentType
Exclusive(on_give_up="wait")  # arg-type, reportArgumentType
Exclusive(on_full="wait")  # arg-type, reportArgumentType
Exclusive(order="fifo")  # arg-type, reportArgumentType
Exclusive(on_store_error="skip")  # arg-type, reportArgumentType
Exclusive(recover="yes")  # arg-type, reportArgumentType
Exclusive(ttl="30")  # arg-type, reportArgumentType
Exclusive(key=17)  # arg-type, reportArgumentType
Exclusive(timeout=30)  # call-arg, reportCallIssue
Exclusive("tenant_id", "user_id")  # call-arg, reportCallIssue
Unique(on_conflict="wait")  # arg-type, reportArgumentType
Unique(until="ended")  # arg-type, reportArgumentType
Unique(period="60")  # arg-type, reportArgumentType
Unique(limit=4)  # call-arg, reportCallIssue
Unique(wait=4)  # call-arg, reportCallIssue
Debounce("doc_id")  # call-arg, reportCallIssue
Debounce("doc_id", wait=5, max_wait="60")  # arg-type, reportArgumentType
Debounce("doc_id", wait=5, max_wait=60, period=30)  # call-arg, reportCallIssue
lock(17)  # arg-type, reportArgumentType
lock("repo:17", wait="3")  # arg-type, reportArgumentType
lock("repo:17", limit="4")  # arg-type, reportArgumentType
lock("api", part=17)  # arg-type, reportArgumentType
lock("repo:17").acquire(blocking=False)  # arg-type, reportArgumentType
lock("repo:17", timeout=3)  # arg-type, reportArgumentType
locks.cancel(17)  # arg-type, reportArgumentType


@app.task(exclusive=Unique())  # call-overload, untyped-decorator, reportArgumentType
def takes_unique(number: int) -> None: ...


@app.task(unique=Exclusive())  # call-overload, untyped-decorator, reportArgumentType
def takes_exclusive(number: int) -> None: ...


@app.task(bind=True, exclusive="url")  # call-overload, untyped-decorator, reportArgumentType, reportCallIssue
def takes_a_string(self: Task, feed_url: str) -> None: ...


@shared_task(exclusive=True)  # call-overload, untyped-decorator, reportArgumentType
def takes_true(number: int) -> None: ...


@Exclusive()  # arg-type, reportArgumentType
def decorated(number: int) -> None: ...


@lock("repo:17")  # arg-type, reportArgumentType
def locked(number: int) -> None: ...


@app.task(exclusive=Exclusive())
def rebuild(number: int) -> int:
    return number


@app.task(bind=True, exclusive=Exclusive())
def sync(self: Task, number: int) -> int:
    print(self.leese)  # attr-defined, reportAttributeAccessIssue
    return number


def calls() -> Result[str]:
    rebuild.delay()  # call-arg, reportCallIssue
    rebuild.delay("1")  # arg-type, reportArgumentType
    sync.delay(1, 2)  # call-arg, reportCallIssue
    print(rebuild.delay(1).outcom)  # attr-defined, reportAttributeAccessIssue
    rebuild.lock_status(1)  # attr-defined, reportAttributeAccessIssue
    rebuild.release_lock(1, reason=3)  # arg-type, reportArgumentType
    rebuild.apply_async((1,), exclusive=Unique())  # arg-type, reportArgumentType
    rebuild.s(1).set(unique="number")  # arg-type, reportArgumentType
    return rebuild.delay(1)  # return-value, reportReturnType
