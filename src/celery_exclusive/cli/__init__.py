"""The command line: `celery -A proj locks`."""
