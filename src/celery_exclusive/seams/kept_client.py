"""Keeps the client of redis-py through which a channel of kombu's Redis transport asks its server.

kombu makes a new client for each request of a channel: one for each message that is published, several for
each message that a worker receives and acknowledges. Making a client takes longer than the request. All these
clients use the connections of the channel's pool, and do not differ. But where a credential provider changes
the password of open connections, each new client passes its pool to the provider.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any


def keep_client(channel: Any) -> None:
    """Let this channel keep its client, if it is one of kombu's own for Redis."""
    is_known = type(channel).__module__ == "kombu.transport.redis" and hasattr(channel, "_create_client")
    if is_known and "_create_client" not in vars(channel):
        channel._create_client = partial(_kept, channel, channel._create_client)


def client_of(channel: Any) -> Any:
    """Return the client that a channel keeps. Other users of the channel get new clients, as before."""
    return _kept(channel, channel._create_client)


def _kept(channel: Any, make: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Return the client that this channel keeps, or a new one that `make` makes."""
    if args or options or channel.pool.connection_kwargs.get("credential_provider"):
        return make(*args, **options)  # with arguments for the pool of an event loop, which is rare
    kept = vars(channel).get("_exclusive_client")
    if kept is None or kept.connection_pool is not channel.pool:  # a new pool, as after a fork
        kept = channel._exclusive_client = make()
    return kept
