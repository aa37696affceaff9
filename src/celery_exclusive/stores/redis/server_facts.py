"""The facts that a server reports of itself, and the warnings for its operator."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from celery_exclusive.stores.redis.client import Denied, Server


def facts_of(server: Server) -> dict[str, str]:
    """Return the facts in INFO. Hosted servers leave some or all of them out."""
    info: bytes = _ask_if_allowed(server, "INFO") or b""
    lines = (line.partition(":") for line in info.decode(errors="replace").splitlines())
    return {name: value for name, _, value in lines}


def warnings_of(server: Server, facts: dict[str, str], url: str, replicas: int = 0) -> list[str]:
    """Return warnings about a server that may evict locks, loses them in a restart, or lacks replicas."""
    warnings = []
    followers = int(facts.get("connected_slaves", replicas))
    if followers < replicas:
        warnings.append(
            f"store {url}: replicas={replicas} of its URL have to confirm each lease, and {followers} follow "
            "it: no lease is granted before they do; look for the replicas, or lower replicas="
        )
    policy = facts.get("maxmemory_policy", "noeviction")
    if facts.get("maxmemory", "0") != "0" and policy != "noeviction":
        warnings.append(
            f"store {url}: its maxmemory-policy is {policy}, which may drop locks and waiting tasks "
            "when memory is full; set it to noeviction"
        )
    saves = _ask_if_allowed(server, "CONFIG", "GET", "save") if facts.get("aof_enabled") == "0" else None
    if saves and not saves[1]:  # no snapshots either
        warnings.append(
            f"store {url}: it writes nothing to disk, so a restart loses locks and waiting tasks; "
            "set appendonly to yes"
        )
    return warnings


def _ask_if_allowed(server: Server, *command: str) -> Any:
    """Send a command about the server itself. None: the server denies it, as hosted servers do."""
    with suppress(Denied):
        return server.ask(*command)
    return None
