"""The layer below Celery: threads, forks, signals, deadlines."""
