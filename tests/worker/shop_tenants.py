"""The tasks of an app with several tenants: each message names its own in a header, never in an argument.

The app's class adds it where tenant-schemas-celery does, and its worker restores it before a body.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from celery import Celery, Task
from celery.signals import before_task_publish, task_prerun

from celery_exclusive import Exclusive, Unique, install
from tests.worker.shop import CONF, act, journal

HEADER = "_schema_name"
tenant: ContextVar[str] = ContextVar("tenant", default="public")


def with_tenant(options: dict[str, Any]) -> dict[str, Any]:
    headers = {HEADER: tenant.get(), **(options.get("headers") or {})}
    return {**options, "headers": headers}


def add_tenant(headers: dict[str, Any], **_: Any) -> None:
    headers.setdefault(HEADER, tenant.get())


class TenantApp(Celery):
    def send_task(self, name: str, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        return super().send_task(name, args=args, kwargs=kwargs, **with_tenant(options))


class TenantTask(Task):
    abstract = True

    def apply(self, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        return super().apply(args, kwargs, *rest, **with_tenant(options))


def key_of_tenant(n: int, tag: str = "", hold: bool = False, *, headers: dict[str, Any]) -> str:
    return f"{headers.get(HEADER)}:{n}"


has_receiver = CONF.pop("tenants_by_receiver", False)
if has_receiver:
    before_task_publish.connect(add_tenant, weak=False)
app = install((Celery if has_receiver else TenantApp)("tenants"))
app.conf.update({"exclusive_key_headers": (HEADER,), **CONF})


@task_prerun.connect(weak=False)
def restore(task: Any, **_: Any) -> None:
    headers = task.request.headers or {}
    if HEADER in headers:
        tenant.set(headers[HEADER])


def task(**options: Any) -> Any:
    return app.task(bind=True, shared=False, base=TenantTask, **options)


def body(self: Any, n: int, tag: str = "", hold: bool = False) -> str:
    act(self, tenant.get(), tag, hold=hold)
    return tag


@task(unique=Unique("n"))
def once(self: Any, n: int, tag: str = "", hold: bool = False) -> str:
    return body(self, n, tag, hold)


@task(exclusive=Exclusive())
def alone(self: Any, n: int, tag: str = "", hold: bool = False) -> str:
    return body(self, n, tag, hold)


@task(exclusive=Exclusive(key="{n}"))
def shared(self: Any, n: int, tag: str = "", hold: bool = False) -> str:
    return body(self, n, tag, hold)


@task(exclusive=Exclusive("n"), unique=Unique("n"), max_retries=1)
def again(self: Any, n: int, tag: str = "", hold: bool = False) -> str:
    body(self, n, tag, hold)
    journal.write("key", tag=tag, key=self.lease.key, retries=self.request.retries)
    if not self.request.retries:
        raise self.retry(countdown=0)
    return tag


@task(unique=Unique(key=key_of_tenant))
def by_function(self: Any, n: int, tag: str = "", hold: bool = False) -> str:
    return body(self, n, tag, hold)


@task()
def spawn(self: Any, n: int) -> Any:
    """Publishes from inside a body, whose tenant it has."""
    result = once.delay(n, "spawned")
    return result.outcome, result.existing_id
