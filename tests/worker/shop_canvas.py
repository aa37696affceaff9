"""More tasks for the shop: members of canvases that share one key, and tasks of unusual make."""

from __future__ import annotations

import time
from base64 import b64encode
from typing import Any

from celery import Task, shared_task
from celery.worker.request import Request

from celery_exclusive import Exclusive, ExclusiveError
from tests.worker.journal import eventually
from tests.worker.shop import act, app, journal, task

SHARED = Exclusive(key="shared:{key}")
SHARED_SKIP = SHARED.replace(on_conflict="skip")
CONSTANT = SHARED.replace(on_conflict="skip", skip_result="somebody else does it")


class Lingering(app.Task):  # type: ignore[name-defined, misc]
    """Its lease ends only when somebody waits for it, if the call says `linger=True`."""

    abstract = True

    def linger(self, kwargs: dict[str, Any]) -> None:
        if kwargs.get("linger"):
            eventually(lambda: self.lock_state(**kwargs).waiting, "somebody in line", 30)

    def after_return(
        self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        self.linger(kwargs)

    def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        self.linger(kwargs)


# Members of canvases


@task(exclusive=SHARED)
def hold(self: Task, key: str, tag: str = "holder") -> str:
    act(self, key, tag, hold=True)
    return tag


@task(exclusive=SHARED, base=Lingering)
def append(self: Task, so_far: list[str] | None = None, *, key: str, tag: str, linger: bool = False) -> Any:
    act(self, key, tag)
    return [*(so_far or []), tag]


@task(exclusive=SHARED)
def number(self: Task, n: int, key: str) -> int:
    act(self, key, str(n))
    return n


@task(exclusive=SHARED)
def total(self: Task, numbers: list[int], key: str, tag: str = "total") -> int:
    act(self, key, tag)
    return sum(numbers)


@task()
def unlocked_list(self: Task, results: Any) -> Any:
    act(self, "", "body")
    return results


@task(exclusive=SHARED)
def fail(self: Task, key: str, tag: str = "failing") -> None:
    act(self, key, tag)
    raise KeyError(tag)


@task()
def note_failure(self: Task, *_: Any) -> None:
    act(self, "", "errback")


@task()
def hold_free(self: Task, tag: str) -> None:
    act(self, "", tag, hold=True)


# Endings that publish the same task id again


@task(exclusive=SHARED, base=Lingering, max_retries=5)
def again(self: Task, *, key: str, tag: str, times: int = 2, linger: bool = False) -> int:
    act(self, key, f"{tag}{self.request.retries}")
    if self.request.retries < times:
        raise self.retry(countdown=0)
    return self.request.retries


@task(
    exclusive=SHARED,
    base=Lingering,
    autoretry_for=(ValueError,),
    retry_kwargs={"countdown": 0, "max_retries": 5},
)
def stubborn(self: Task, *, key: str, tag: str, linger: bool = False) -> int:
    act(self, key, f"{tag}{self.request.retries}")
    if self.request.retries < 2:
        raise ValueError(tag)
    return self.request.retries


@task(exclusive=SHARED)
def become(self: Task, *, key: str, tag: str, times: int = 2) -> int:
    act(self, key, f"{tag}{times}")
    if times:
        raise self.replace(become.s(key=key, tag=tag, times=times - 1))
    return 100 + times


@task(exclusive=SHARED)
def become_chain(self: Task, *, key: str) -> None:
    act(self, key, "chain")
    raise self.replace(append.s(key=key, tag="x") | append.s(key=key, tag="y"))


# Those that skip


@task(exclusive=SHARED_SKIP, base=Lingering)
def maybe(self: Task, *_: Any, key: str, tag: str = "", hold: bool = False, linger: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag


@task(exclusive=CONSTANT)
def constant(self: Task, key: str, tag: str = "") -> str:
    act(self, key, tag)
    return tag


@task(exclusive=SHARED_SKIP, base=Lingering, max_retries=5)
def maybe_again(self: Task, *, key: str, tag: str, linger: bool = False) -> int:
    act(self, key, f"{tag}{self.request.retries}")
    if self.request.retries < 2:
        raise self.retry(countdown=0)
    return self.request.retries


@task(exclusive=SHARED_SKIP)
def parent(self: Task, key: str) -> str:
    """Publishes its like, and waits in its body until that has ended."""
    act(self, key, "parent")
    child = maybe.delay(key=key, tag="child")
    eventually(lambda: child.state == "SUCCESS", "the child's end")
    return child.id


# Tasks of unusual make


def tell(task: Task, tag: str, **more: Any) -> None:
    """Note all that a body can see of its message."""
    context = {name: value for name, value in vars(task.request).items() if not name.startswith("_")}
    journal.write("request", id=task.request.id, tag=tag, request=plain_data(context), **more)


def plain_data(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): plain_data(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_data(item) for item in value]
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return value if isinstance(value, (str, int, float, type(None))) else repr(value)


class Watching(Request):  # type: ignore[misc]
    """A user's own request class: notes every delivered message in the main process."""

    def __init__(self, message: Any, **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        journal.write(
            "message",
            id=self.id,
            body=plain_data(message.body),
            content_type=message.content_type,
            content_encoding=message.content_encoding,
            headers=plain_data(message.headers),
            properties=plain_data(message.properties),
            delivery_info=plain_data(message.delivery_info),
        )


class Watched(app.Task):  # type: ignore[name-defined, misc]
    abstract = True
    Request = Watching


@task(exclusive=SHARED, base=Watched)
def watched(self: Task, key: str, tag: str = "", **payload: Any) -> dict[str, Any]:
    act(self, key, tag)
    tell(self, tag)
    return {"got": plain_data(payload)}


@task(exclusive=SHARED.replace(on_conflict="reschedule"), base=Watched)
def watched_later(self: Task, key: str, tag: str = "") -> str:
    act(self, key, tag)
    return str(self.request.delivery_info["routing_key"])


class WatchedByName(app.Task):  # type: ignore[name-defined, misc]
    abstract = True
    Request = "tests.worker.shop_canvas:Watching"


@task(exclusive=SHARED, base=WatchedByName)
def watched_by_name(self: Task, key: str, tag: str = "") -> str:
    act(self, key, tag)
    return tag


class Called(app.Task):  # type: ignore[name-defined, misc]
    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        journal.write("call", id=self.request.id, tag=kwargs.get("tag"))
        return ["called", super().__call__(*args, **kwargs)]


@task(exclusive=SHARED_SKIP, base=Called)
def own_call(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag


class WithSession(app.Task):  # type: ignore[name-defined, misc]
    """Its bodies have an argument that no call gives, so Celery is told not to compare the two."""

    abstract = True
    typing = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        journal.write("call", id=self.request.id)
        return self.run("a session", *args, **kwargs)


@task(exclusive=Exclusive("key"), base=WithSession)
def in_session(self: Task, session: str, key: str, tag: str = "") -> str:
    act(self, key, tag)
    return session


class Counting(app.Task):  # type: ignore[name-defined, misc]
    """A user's base class, with state and hooks of its own."""

    abstract = True
    unit = "pieces"

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        journal.write("success", id=task_id, unit=self.unit)


@task(exclusive=SHARED, base=Counting)
def counted(self: Task, key: str, tag: str = "") -> str:
    act(self, key, tag)
    return f"{tag} {self.unit}"


class Import(app.Task):  # type: ignore[name-defined, misc]
    name = "tests.worker.shop_canvas.Import"
    exclusive = Exclusive("feed_url")

    def run(self, feed_url: str, **kwargs: Any) -> Any:
        act(self, feed_url, kwargs.get("tag", ""), hold=kwargs.get("hold", False))
        return [feed_url, kwargs.get("tag")]


class FreeImport(Import):
    name = "tests.worker.shop_canvas.FreeImport"
    exclusive = None


app.register_task(Import())
app.register_task(FreeImport())


@task(exclusive=SHARED)
def unlockable(self: Task, key: str, tag: str = "", lease: bool = True) -> int | None:
    """Returns its fence, or None where the call switched its lock off."""
    if lease and (self.request.called_directly or has_lease(self)):
        return self.lease.fence
    return None


def has_lease(task: Task) -> bool:
    try:
        return bool(task.lease.fence)
    except ExclusiveError:
        return False


@shared_task(bind=True, exclusive=SHARED)
def shared(self: Task, key: str, tag: str = "", hold: bool = False) -> str:
    act(self, key, tag, hold=hold)
    return tag


@task(exclusive=Exclusive(key="repo:{project.pk}"))
def by_attribute(self: Task, project: Any, tag: str = "") -> None:
    act(self, "", tag)


@task(exclusive=SHARED)
def sit(self: Task, key: str, tag: str) -> str:
    """Like `hold`, but its door is a file: it can be opened while every server is down."""
    journal.write("start", task=self.name, id=self.request.id, key=key, tag=tag, fence=self.lease.fence)
    door = journal.path.parent / f"door-{tag}"
    while not door.exists():
        time.sleep(0.02)
    journal.write("end", task=self.name, id=self.request.id, key=key, tag=tag)
    return tag
