"""The tables of locks and of tasks that wait, for the admin to read.

Only a store may write to them. They are no data of the project, so `dumpdata` and the default managers do not
see them.
"""

from __future__ import annotations

from typing import Any

from django.db import models

from celery_exclusive.contrib.django.fields import Name


class Nothing(models.Manager):
    def get_queryset(self) -> Any:
        return super().get_queryset().none()


class Lock(models.Model):
    """A key that is held, or that tasks wait for."""

    namespace = Name()
    key = Name(primary_key=True)  # within a namespace
    ends = models.BigIntegerField(null=True)
    waiting = models.IntegerField()
    aside = models.IntegerField()

    objects = Nothing()

    class Meta:
        managed = False
        db_table = "exclusive2_lock"
        base_manager_name = "objects"
        ordering = ("key",)
        default_permissions = ("view",)
        permissions = (("release_lock", "Can release locks"),)

    def __str__(self) -> str:
        return str(self.key)


class WaitingTask(models.Model):
    """A message in the line of a key."""

    namespace = Name()
    key = Name()
    id = Name(primary_key=True)  # within the line of a key
    state = models.TextField()
    place = models.BigIntegerField()

    objects = Nothing()

    class Meta:
        managed = False
        db_table = "exclusive2_line"
        base_manager_name = "objects"
        ordering = ("key", "state", "place")
        default_permissions = ("view",)

    def __str__(self) -> str:
        return str(self.id)
