"""The app, as Django knows it."""

from __future__ import annotations

from importlib import import_module

from django.apps import AppConfig


class Locks(AppConfig):
    name = "celery_exclusive.contrib.django"
    label = "celery_exclusive"
    verbose_name = "Celery locks"

    def ready(self) -> None:
        import_module(f"{self.name}.checks")
        import_module(f"{self.name}.private_file")
