"""Exclusive Celery tasks: one at a time per key, and nothing lost."""
