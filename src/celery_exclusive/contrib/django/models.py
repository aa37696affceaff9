"""The model that gives the page its place in the admin, its permissions, and the entries in the admin's log.

It has no table. The tables of locks are no data of the project: only a store reads and writes them.
"""

from __future__ import annotations

from typing import Any

from django.db import models


class Nothing(models.Manager):
    """No rows, for `dumpdata` too."""

    def get_queryset(self) -> Any:
        return super().get_queryset().none()


class Lock(models.Model):
    """A key, as an entry in the log of the admin names it."""

    key = models.TextField(primary_key=True)

    objects = Nothing()

    class Meta:
        managed = False
        base_manager_name = "objects"
        default_permissions = ("view",)
        permissions = (
            ("release_lock", "Can release locks that no task holds"),
            ("force_release_lock", "Can release locks by force"),
            ("drop_waiting", "Can drop waiting tasks"),
        )

    def __str__(self) -> str:
        return str(self.key)
