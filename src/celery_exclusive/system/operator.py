"""The operator of a command, for logs and events."""

from __future__ import annotations

import os
from getpass import getuser
from socket import gethostname


def operator() -> str:
    """Return the user of this process, or of sudo, with the host, and the id, which no variable changes."""
    uid = os.getuid()
    try:
        user = os.environ.get("SUDO_USER") or getuser()
    except (KeyError, OSError):  # a container whose user has no name
        user = str(uid)
    return f"{user}@{gethostname()} uid {uid}"
