"""The shop in a Django project whose database has the locks."""

from __future__ import annotations

import json
import os

from django.conf import settings

from tests.worker.shop import app, task, wait

__all__ = ["app", "task", "wait"]

if not settings.configured:
    settings.configure(DATABASES=json.loads(os.environ["DJANGO_DATABASES"]))
