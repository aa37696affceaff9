"""A Django project, as Celery's own documentation sets one up."""

from proj.celery import app as celery_app

__all__ = ["celery_app"]
