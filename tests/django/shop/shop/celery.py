"""The Celery application."""

from celery import Celery

from celery_exclusive import install

app = install(Celery("shop"))
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
