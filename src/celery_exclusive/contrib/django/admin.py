"""Django's admin: the page of locks, with a permission for each of its actions."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.urls import path, re_path
from django.views.generic import RedirectView

from celery_exclusive.contrib.django.models import Lock
from celery_exclusive.contrib.django.project import has_locks
from celery_exclusive.display import escaped

_RIGHTS = {"release": "release_lock", "force": "force_release_lock", "drop": "drop_waiting"}
"""The permissions for the actions of the page."""


@admin.register(Lock)
class LockAdmin(admin.ModelAdmin):
    def get_urls(self) -> Any:
        """Return the URLs of the page, in place of a list and a form of rows."""
        return [
            re_path("^page/(?P<page>[a-z.-]*)$", self.admin_site.admin_view(self.page_view)),
            # the index of the admin links to this name
            path("", RedirectView.as_view(url="page/"), name="celery_exclusive_lock_changelist"),
        ]

    def get_model_perms(self, request: Any) -> dict[str, bool]:
        """Let the index of the admin offer to view locks, and not to add or change them."""
        return {"add": False, "change": False, "delete": False, "view": self.has_view_permission(request)}

    def has_view_permission(self, request: Any, obj: Any = None) -> bool:
        return has_locks() and bool(super().has_view_permission(request, obj))

    def page_view(self, request: Any, page: str) -> Any:
        """Show the page to users with the view permission; each action needs its own."""
        from celery_exclusive.contrib.django.page import AdminAccess, show

        if not self.has_view_permission(request):
            raise PermissionDenied

        def log(key: str, text: str) -> None:
            self.log_change(request, Lock(key=escaped(key)), text)

        rights = {right for right, name in _RIGHTS.items() if self._has(request, name)}
        return show(request, page, AdminAccess(request, log, rights))

    def _has(self, request: Any, permission: str) -> bool:
        return bool(request.user.has_perm(f"{self.opts.app_label}.{permission}"))
