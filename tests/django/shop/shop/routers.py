"""Routers between the databases."""


class LocksApart:
    """The tables for locks are in an alias of their own, and nothing else is there."""

    def allow_migrate(self, db, app_label, **hints):
        return (db == "locks") == (app_label == "celery_exclusive")


class NoLocks:
    def allow_migrate(self, db, app_label, **hints):
        return False if app_label == "celery_exclusive" else None
