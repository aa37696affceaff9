"""The Celery application; `install` is the only line that is not in Celery's documentation."""

from celery import Celery

from celery_exclusive import install

app = install(Celery("proj"))
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
