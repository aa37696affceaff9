"""The transport of an app's broker, which kombu imports when it is first used."""

from __future__ import annotations

from contextlib import suppress
from typing import Any


def load_transport(app: Any) -> None:
    """Import the transport of this app's broker, so that the probe sees its names. It connects to nothing."""
    with suppress(Exception):  # a broker that cannot be reached in this way is refused elsewhere
        app.connection_for_write().get_transport_cls()
