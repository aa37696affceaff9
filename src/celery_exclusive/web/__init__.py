"""A page that shows locks in a browser, as a WSGI application without dependencies."""

from celery_exclusive.web.wsgi import application

__all__ = ["application"]
