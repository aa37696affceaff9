"""The decisions of the library. Pure: no I/O, no clock, no randomness, no Celery."""
