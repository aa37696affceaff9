"""The Django project of the example."""

from .celery import app as celery_app

__all__ = ["celery_app"]
