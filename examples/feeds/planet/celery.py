"""The Celery application: one line more than in any Django project."""

import os

from celery import Celery

from celery_exclusive import install

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "planet.settings")

app = install(Celery("planet"))
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
