"""Django's admin: shows locks and waiting tasks, and releases locks that no running body holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Count, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.shortcuts import redirect
from django.urls import path, re_path, reverse
from django.utils import timezone
from django.utils.html import format_html

from celery_exclusive.contrib.django.models import Lock, WaitingTask
from celery_exclusive.contrib.django.page import AdminAccess, show
from celery_exclusive.contrib.django.project import alias, has_locks, services
from celery_exclusive.contrib.django.workers import workers_of
from celery_exclusive.core.claim import task_id
from celery_exclusive.core.records import SECOND
from celery_exclusive.display import escaped, printable, unescaped
from celery_exclusive.errors import ExclusiveError, LockHeld
from celery_exclusive.leases.operator_release import release
from celery_exclusive.options.key_text import KINDS
from celery_exclusive.stores.text import to_bytes

_LOCK = "celery_exclusive_lock"
"""The beginning of the names of the URLs."""


class ReadOnlyAdmin(admin.ModelAdmin):
    """Rows of this app's namespace in the database of the locks. No user adds, changes or deletes rows."""

    search_fields = ("key",)
    search_help_text = "The beginning of a key"

    def has_add_permission(self, request: Any) -> bool:
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def has_view_permission(self, request: Any, obj: Any = None) -> bool:
        return alias() is not None and bool(super().has_view_permission(request, obj))

    def get_queryset(self, request: Any) -> Any:
        rows = QuerySet(self.model, using=alias())
        return rows.filter(namespace=escaped(services().settings.exclusive_prefix))

    def get_search_results(self, request: Any, queryset: Any, search_term: str) -> tuple[Any, bool]:
        """Find the keys that begin with these characters, with or without their kind."""
        begins: Any = Q()
        for kind in ("", *KINDS) if search_term else ():
            first = to_bytes(unescaped(kind + search_term))
            begins |= Q(key__gte=first, key__lt=first + b"\xff")
        return queryset.filter(begins), False

    @admin.display(description="page")
    def on_page(self, row: Any) -> Any:
        """Return a link to the key of this row on the page of all stores."""
        url = reverse(f"{self.admin_site.name}:{_LOCK}_page", args=("key",))
        query = urlencode({"key": row.key})
        return format_html('<a href="{}?{}">holders and line</a>', url, query)

    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:
        try:
            services().store.epoch()
        except ExclusiveError as error:  # no tables, no server: told instead of a page of errors
            self.message_user(request, str(error), messages.ERROR)
            return redirect(f"{self.admin_site.name}:index")
        return super().changelist_view(request, extra_context)


@admin.register(Lock)
class LockAdmin(ReadOnlyAdmin):
    list_display = ("key", "state", "holder", "worker", "age", "lease_left", "in_line", "on_page")
    fields = list_display
    actions = ("release",)

    def get_urls(self) -> Any:
        """Add the page of all stores, in place of the tables if they are in no database of the project."""
        page, table = (
            self.admin_site.admin_view(self.page_view),
            self.admin_site.admin_view(self.changelist_view),
        )
        urls = [re_path(r"^page/(?P<page>[a-z.-]*)$", page, name=f"{_LOCK}_page")]
        if alias() is None:
            return [*urls, path("", table, name=f"{_LOCK}_changelist")]
        return [*urls, *super().get_urls()]

    def has_view_permission(self, request: Any, obj: Any = None) -> bool:
        return has_locks() and admin.ModelAdmin.has_view_permission(self, request, obj)

    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:
        if alias() is None:
            return redirect(f"{self.admin_site.name}:{_LOCK}_page", page="")
        return super().changelist_view(request, extra_context)

    def page_view(self, request: Any, page: str) -> Any:
        """Show the page of all stores to users with the view permission; actions need the other one."""
        if not self.has_view_permission(request):
            raise PermissionDenied

        def log(key: str, text: str) -> None:
            self.log_change(request, Lock(key=escaped(key)), text)

        access = AdminAccess(request, log, may_change=self.has_release_permission(request))
        return show(request, page, access)

    def get_queryset(self, request: Any) -> Any:
        """Leave out keys that are free: the reaper deletes their rows later."""
        now = int(timezone.now().timestamp() * SECOND)
        return super().get_queryset(request).exclude(waiting=0, aside=0, ends__lte=now)

    def get_changelist_instance(self, request: Any) -> Any:
        changelist = super().get_changelist_instance(request)
        _look_at(changelist.result_list)
        return changelist

    def get_object(self, request: Any, object_id: str, from_field: Any = None) -> Any:
        lock = super().get_object(request, object_id, from_field)
        if lock:
            _look_at([lock])
        return lock

    def has_release_permission(self, request: Any) -> bool:
        return bool(request.user.has_perm(f"{self.opts.app_label}.release_lock"))

    @admin.action(permissions=["release"], description="Release the selected locks, unless a task runs")
    def release(self, request: Any, queryset: Any) -> None:
        for lock in queryset:
            said, level = _release(unescaped(lock.key), f"{request.user} in Django's admin")
            self.log_change(request, lock, said)
            self.message_user(request, f"Lock {lock.key}: {said}", level)

    @admin.display
    def state(self, lock: Any) -> str:
        return str(lock.snapshot.state)

    @admin.display
    def holder(self, lock: Any) -> str:
        more = [f"and {lock.snapshot.others} more"] if lock.snapshot.others else []
        return ", ".join([*(printable(task_id(owner.id)) for owner in lock.snapshot.holders), *more]) or "-"

    @admin.display
    def worker(self, lock: Any) -> str:
        return ", ".join(lock.workers.get(task_id(owner.id), "-") for owner in lock.snapshot.holders) or "-"

    @admin.display
    def age(self, lock: Any) -> str:
        return _seconds(owner.age for owner in lock.snapshot.holders)

    @admin.display(description="lease left")
    def lease_left(self, lock: Any) -> str:
        return _seconds(owner.remaining for owner in lock.snapshot.holders)

    @admin.display(description="waiting")
    def in_line(self, lock: Any) -> int:
        return int(lock.snapshot.all_waiting)


@admin.register(WaitingTask)
class WaitingTaskAdmin(ReadOnlyAdmin):
    list_display = ("key", "position", "state", "task", "on_page")
    fields = list_display

    def get_queryset(self, request: Any) -> Any:
        """Leave out copies of running tasks, which are behind their runs and not in line."""
        rows = super().get_queryset(request).exclude(state="behind")
        same = QuerySet(WaitingTask, using=alias()).filter(
            namespace=OuterRef("namespace"), key=OuterRef("key"), state=OuterRef("state")
        )
        before = (
            same.filter(place__lt=OuterRef("place"))
            .order_by()
            .values("key")
            .annotate(n=Count("id"))
            .values("n")
        )
        return rows.annotate(position=Coalesce(Subquery(before), 0) + 1)

    @admin.display(description="place")
    def position(self, entry: Any) -> int:
        return int(entry.position)

    @admin.display
    def task(self, entry: Any) -> str:
        return printable(task_id(unescaped(entry.id)))


def _look_at(locks: Iterable[Any]) -> None:
    """Add to each lock its state and the workers of its holders, by the clock of the store."""
    locks = list(locks)
    found = services().store.inspect_all([unescaped(lock.key) for lock in locks])
    ids = [task_id(owner.id) for snapshot in found for owner in snapshot.holders if owner.phase == "running"]
    workers = workers_of(services().app, ids)
    for lock, snapshot in zip(locks, found, strict=True):
        lock.snapshot, lock.workers = snapshot, workers


def _release(key: str, by: str) -> tuple[str, int]:
    """Release a lock, unless its holder runs; return the message for the user with its level."""
    try:
        released = release(services(), key, by=by)
    except LockHeld as held:
        holder = printable(held.holder)
        return (
            f"Not released: {holder} runs. It releases the lock when it ends; if its worker is dead, the "
            "lease ends by itself."
        ), messages.ERROR
    except ExclusiveError as error:
        return f"Not released: {error}", messages.ERROR
    former = ", ".join(printable(task_id(owner.id)) for owner in released.former)
    said = f"Released, was held by {former}." if former else "It had no holder."
    return said, messages.SUCCESS


def _seconds(times: Iterable[int]) -> str:
    return ", ".join(f"{time / SECOND:.1f} s" for time in times) or "-"
