"""What is below Celery: threads, forks, signals, deadlines."""
