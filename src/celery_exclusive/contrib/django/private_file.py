"""Makes a new SQLite file of the locks readable for its owner alone, since it has arguments of tasks."""

from __future__ import annotations

import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.db.backends.signals import connection_created
from django.dispatch import receiver

from celery_exclusive.contrib.django.project import alias

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@receiver(connection_created)
def make_private(connection: Any, **_: object) -> None:
    """Change the mode of the file after SQLite has made it, and before it writes.

    A file with data keeps its mode, and so does one that was made for a group of users.
    """
    if connection.vendor != "sqlite":
        return
    path = Path(str(connection.settings_dict["NAME"]))
    with suppress(OSError):  # it is in memory
        found = path.stat()
        is_new = stat.S_ISREG(found.st_mode) and found.st_size == 0 and not found.st_mode & _OTHERS_WRITE
        if is_new and connection.alias == alias():
            path.chmod(0o600)
